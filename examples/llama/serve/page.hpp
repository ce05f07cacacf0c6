#pragma once

#include <string_view>

namespace llama {

/// Shows /metrics as they change.
inline constexpr std::string_view page = R"html(<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>pagedkv</title>
<style>
  body { font: 15px/1.5 system-ui, sans-serif; max-width: 48rem; margin: 2rem auto; padding: 0 1rem; color: #1d2733; }
  #pool { display: flex; height: 2.5rem; border-radius: 4px; overflow: hidden; background: #e4e8ed; }
  #pool div, .mark { background: var(--color); }
  .mark { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .4em; }
  table { border-collapse: collapse; width: 100%; margin: 1rem 0; }
  td { border-top: 1px solid #e4e8ed; padding: .3rem 0; }
  td:last-child { text-align: right; font-variant-numeric: tabular-nums; }
  canvas { width: 100%; height: 8rem; border: 1px solid #e4e8ed; border-radius: 4px; }
</style>
<h1>pagedkv</h1>
<p id="status">connecting</p>
<div id="pool"></div>
<table id="blocks"></table>
<p>Blocks in use, over the last minutes:</p>
<canvas id="history" width="960" height="160"></canvas>
<table id="tiers"></table>
<table id="counts"></table>
<script>
const states = { in_use: "#2166ac", evictable: "#67a9cf", retiring: "#ef8a62", free: "#e4e8ed" };
const past = [];

function parse(text) {
  const values = {};
  for (const line of text.split("\n")) {
    const found = line.match(/^pagedkv_(\w+)\{(.*)\} (\S+)$/);
    if (found) {
      const labels = found[2].matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g);
      const own = [...labels].filter(label => label[1] !== "model").map(label => label[2]).join();
      values[own ? `${found[1]}/${own}` : found[1]] = Number(found[3]);
    }
  }
  return values;
}

function fill(table, rows) {
  document.getElementById(table).innerHTML =
    rows.map(([name, value]) => `<tr><td>${name}</td><td>${value}</td></tr>`).join("");
}

function draw(total) {
  const canvas = document.getElementById("history");
  const pen = canvas.getContext("2d");
  pen.clearRect(0, 0, canvas.width, canvas.height);
  pen.fillStyle = states.in_use;
  past.forEach((count, i) => {
    const height = canvas.height * count / total;
    pen.fillRect(i * 2, canvas.height - height, 2, height);
  });
}

function show(values) {
  const blocks = Object.keys(states).map(state => [state, values[`pool_blocks/${state}`]]);
  const total = blocks.reduce((sum, [, count]) => sum + count, 0);
  document.getElementById("pool").innerHTML =
    blocks.map(([state, count]) => `<div style="--color: ${states[state]}; flex: ${count}" title="${state}"></div>`).join("");
  fill("blocks", blocks.map(([state, count]) =>
    [`<span class="mark" style="--color: ${states[state]}"></span>blocks ${state.replace("_", " ")}`, count]));
  past.push(values["pool_blocks/in_use"]);
  past.splice(0, past.length - 480);
  draw(total);
  const share = (part, whole) => whole ? `${part} of ${whole} (${(100 * part / whole).toFixed(1)} %)` : "none yet";
  const time = part => values[`step_microseconds_total/${part}`];
  const tiers = Object.keys(values).filter(key => key.startsWith("tier_records/")).map(key => key.split("/")[1]);
  fill("tiers", tiers.flatMap(tier => {
    const records = values[`tier_records/${tier}`];
    const places = values[`tier_places/${tier}`];  // 0 of a store, which has no bound
    return [
      [`tier ${tier}: blocks`, places ? share(records, places) : records],
      [`tier ${tier}: blocks found`, values[`tier_hit_blocks_total/${tier}`]],
    ];
  }));
  fill("counts", [
    ["requests that run", values["requests/running"]],
    ["requests that wait", values["waiting_requests"]],
    ["requests that have finished", values["ended_requests_total/finished"]],
    ["requests that were cancelled", values["ended_requests_total/cancelled"]],
    ["times that a request gave up its blocks", values["preemptions_total"]],
    ["blocks of prompts that were cached", share(values["hit_blocks_total"], values["prompt_blocks_total"])],
    ["blocks evicted", values["evicted_blocks_total"]],
    ["tokens computed", values["computed_tokens_total"]],
    ["microseconds in cache management", share(time("cache"), time("cache") + time("model") + time("other"))],
  ]);
}

async function update() {
  let status = "live";
  try {
    const answer = await fetch("/metrics");
    show(parse(await answer.text()));
  } catch (error) {
    status = "the server does not answer";
  }
  document.getElementById("status").textContent = status;
  setTimeout(update, 500);
}
update();
</script>
</html>
)html";

}  // namespace llama
