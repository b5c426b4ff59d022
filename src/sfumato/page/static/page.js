// What makes the page livelier: everything works without it, step by step.
"use strict";

const form = document.getElementById("fit");

async function fetched(address, body) {
  const answer = await fetch(address, { method: body ? "POST" : "GET", body, credentials: "same-origin" });
  return answer;
}

// -- what is expected follows the fields ---------------------------------------------------------

let asked = 0;

async function expectAgain(place) {
  const mine = ++asked;
  const answer = await fetched(place.dataset.live, new URLSearchParams(new FormData(form)));
  if (mine === asked) place.innerHTML = await answer.text();
}

// What was confirmed is what the server was shown: a field that is typed into asks for another look.
function changed() {
  const confirm = document.querySelector("button.spend");
  if (!confirm) return;
  confirm.disabled = true;
  confirm.textContent = "Changed: see what to expect again, in step 5";
}

function touched(field) {
  if (field.type === "radio" || field.type === "checkbox") return field.checked !== field.defaultChecked;
  if (field.tagName === "SELECT") {
    return field.selectedIndex !== Math.max(0, [...field.options].findIndex((each) => each.defaultSelected));
  }
  return field.matches("input:not([type=hidden], #slide), textarea") && field.value !== field.defaultValue;
}

function follow(place) {
  let waiting = null;
  form.addEventListener("input", (event) => {
    if (event.target.id !== "slide") changed();
    clearTimeout(waiting);
    waiting = setTimeout(() => expectAgain(place), 350);
  });
  if ([...form.elements].some(touched)) changed(); // typed before this script was there
  expectAgain(place);
}

// -- epsilon on a slider -------------------------------------------------------------------------

function slide(slider, field) {
  slider.closest("[hidden]").hidden = false;
  const fromField = () => { if (Number(field.value) > 0) slider.value = Math.log10(Number(field.value)); };
  fromField();
  field.addEventListener("input", fromField);
  slider.addEventListener("input", () => {
    field.value = Number((10 ** slider.value).toPrecision(2));
    form.querySelector("input[name=goal][value=epsilon]").checked = true;
    field.dispatchEvent(new Event("input", { bubbles: true }));
  });
}

// -- a fit is watched ----------------------------------------------------------------------------

async function watch(place) {
  place.ariaBusy = "true";
  while (place.isConnected && place.dataset.watch) {
    await new Promise((done) => setTimeout(done, 700));
    const answer = await fetched(place.dataset.watch);
    const text = await answer.text();
    const running = text.includes('data-state="running"');
    if (!running && "whole" in place.dataset) { location.reload(); return; }
    const held = place.contains(document.activeElement);
    place.innerHTML = text;
    if (held) place.querySelector("button")?.focus();
    if (!running) {
      place.ariaBusy = "false";
      return;
    }
  }
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-watch] button.cancel");
  if (!button) return;
  event.preventDefault();
  button.disabled = true;
  await fetched(button.formAction, new URLSearchParams(new FormData(button.form)));
});

// -- a preview is shown in its place -------------------------------------------------------------

function previews(button, place) {
  button.addEventListener("click", async (event) => {
    event.preventDefault();
    button.disabled = true;
    place.textContent = "Inventing data.";
    const answer = await fetched(button.formAction, new URLSearchParams(new FormData(form)));
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const job = page.getElementById("job");
    place.replaceChildren(...(job ?? page.querySelector("main")).childNodes);
    if (job?.dataset.watch) {
      place.dataset.watch = job.dataset.watch;
      await watch(place);
    }
    button.disabled = false;
  });
}

// -- a target is chosen where it is typed --------------------------------------------------------

for (const goal of document.querySelectorAll(".goal")) {
  goal.addEventListener("input", (event) => {
    if (event.target.name !== "goal" && event.target.id !== "slide") goal.querySelector("input[name=goal]").checked = true;
  });
}

const live = document.querySelector("[data-live]");
if (live) follow(live);
const slider = document.getElementById("slide");
if (slider) slide(slider, document.getElementById("epsilon"));
for (const place of document.querySelectorAll("[data-watch]")) watch(place);
const preview = document.querySelector("[data-fetch=preview]");
if (preview) previews(preview, document.getElementById("preview"));
document.querySelector("[aria-invalid=true]")?.focus();
