#!/usr/bin/env bash
# Runs the benchmarks that scripts/device-test has built, and peers whose Python packages are installed, on the same shapes;
# collects their reports in FOLDER/results.json.
#
#     scripts/lib/measure_device.sh FOLDER DEVICE DRIVER COMPILER
#
# Exit status: 0 all ran, or lack a second device, memory or a package; 1 one failed.
set -euo pipefail
[ $# -eq 4 ] || { echo "usage: scripts/lib/measure_device.sh FOLDER DEVICE DRIVER COMPILER" >&2 && exit 2; }
folder=$1
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
peers=$root/bench/peers
reports=(bandwidth resize peer attention attention_shapes device_step)
status=0
measure() {  # PROGRAM ARGUMENT...
  printf '\n'
  "$@" || [ $? -eq 77 ] || status=1
}

for report in "${reports[@]}"; do
  rm -f "$folder/$report.json"
done
measure "$folder/kernel_bandwidth" "$folder/bandwidth.json"
measure "$folder/kernel_resize" "$folder/resize.json"
measure "$folder/kernel_peer" "$folder/peer.json"
measure "$folder/kernel_attention" "$folder/attention.json"
measure "$folder/kernel_attention" --shapes "$root/bench/kernels/attention_shapes.txt" "$folder/attention_shapes.json"
[ ! -x "$folder/device_step" ] || measure "$folder/device_step" "$folder/device_step.json"
for report in attention attention_shapes; do
  [ ! -e "$folder/$report.json" ] || measure "$peers/flashinfer_attention.py" "$folder/$report.json" "$folder/$report.json"
done
[ ! -e "$folder/device_step.json" ] || measure "$peers/transformers_step.py" "$folder/device_step.json" "$folder/device_step.json"

{
  printf '{"machine": {"device": "%s", "driver": "%s", "compiler": "%s", "date": "%s"}' "$2" "$3" "$4" "$(date -u +%Y-%m-%d)"
  for report in "${reports[@]}"; do
    [ ! -e "$folder/$report.json" ] || printf ',\n"%s": %s' "$report" "$(cat "$folder/$report.json")"
  done
  printf '}\n'
} >"$folder/results.json"
exit "$status"
