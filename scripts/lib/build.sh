# Sourced by the scripts beside this folder.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

targets=()

# clang_that_links SANITIZERS: the oldest clang that compiles the tests and links with these sanitizers (`none`: without
# any; `fuzzer` may be among them); fails if no clang does.
clang_that_links() {
  local compiler program flags=() source='int main() {}'
  [ "$1" = none ] || flags=("-fsanitize=$1")
  [[ $1 != *fuzzer* ]] || source='extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }'
  program=$(mktemp)
  for compiler in clang++-{16..21}; do
    if echo "$source" | "$compiler" "${flags[@]}" -x c++ -o "$program" - 2>/dev/null; then
      rm -f "$program"
      echo "$compiler"
      return
    fi
  done
  rm -f "$program"
  return 1
}

# linker_of COMPILER: LLVM's linker, if this clang finds one that works.
linker_of() {
  local program
  program=$(mktemp)
  if echo 'int main() {}' | "$1" -fuse-ld=lld -x c++ -o "$program" - 2>/dev/null; then
    rm -f "$program"
    echo lld
    return
  fi
  rm -f "$program"
  return 1
}

# build FOLDER [OPTION...]: configures build/FOLDER with these Meson options when it is not yet configured, and builds
# the targets, or everything when there are none.
build() {
  local folder=$root/build/$1
  shift
  if [ ! -f "$folder/build.ninja" ]; then
    meson setup "$@" "$folder" "$root"
  elif [ -n "$(find "$root"/{tests,bench,examples} -name meson.build -newer "$folder/build.ninja" -print -quit)" ]; then
    # Ninja watches only the areas that it knows; this one is new.
    meson setup --reconfigure "$folder" "$root"
  fi
  ninja -C "$folder" "${targets[@]}"
}
