"use strict";
// Follows a run: asks for a state newer than the one shown, and at the end replaces this page by the report.
const at = (id) => document.getElementById(id);
let shown = "", paused = false, left = null, failures = 0;

const inWords = (seconds) => {
  const two = (value) => String(Math.floor(value)).padStart(2, "0");
  return `${Math.floor(seconds / 3600)}:${two(seconds / 60 % 60)}:${two(seconds % 60)}`;
};
const say = (id, words) => { if (at(id).textContent !== words) at(id).textContent = words; };

function show(state) {
  say("status", state.words || (state.done ? "Running" : "Waiting for the first round"));
  at("done").max = state.of;
  at("done").value = state.done;
  say("rounds", `${state.done} of ${state.of} rounds`);
  left = state.ended ? null : state.left;
  state.rows.forEach((row, index) => {
    const cells = at("numbers").querySelectorAll("tbody tr")[index].children;
    row.forEach((words, column) => { if (cells[column].textContent !== words) cells[column].textContent = words; });
  });
  const listed = (words) => Object.assign(document.createElement("li"), {textContent: words});
  at("here").replaceChildren(...state.here.map(listed));
  if (at("figure").dataset.drawn !== state.figure) {
    at("figure").dataset.drawn = state.figure;
    at("figure").innerHTML = state.figure;
  }
}

async function become(address) {
  const page = await (await fetch(address, {cache: "no-store"})).text();
  clearInterval(clock);
  document.open();
  document.write(page);
  document.close();
}

async function follow() {
  for (;;) {
    try {
      const answer = await fetch(`state?seen=${shown}`, {cache: "no-store"});
      if (!answer.ok) throw new Error(answer.statusText);
      const state = await answer.json();
      failures = 0;
      if (!paused || state.ended) show(state);
      shown = state.version;
      if (state.ended) {
        at("pause").hidden = true;
        return state.report ? await become("report") : undefined;
      }
    } catch (error) {
      failures += 1;
      if (failures > 3) {
        say("status", "The command has ended or cannot be reached; its terminal says more.");
        left = null;
        return undefined;
      }
      await new Promise((resume) => setTimeout(resume, 500));
    }
  }
}

at("pause").addEventListener("click", () => {
  paused = !paused;
  shown = "";
  at("pause").textContent = paused ? "Resume" : "Pause";
  at("pause").setAttribute("aria-pressed", String(paused));
});
const clock = setInterval(() => {
  say("left", left === null ? "" : `, about ${inWords(Math.max(left, 0))} left`);
  if (left !== null) left -= 1;
}, 1000);
follow();
