// Judging with the keyboard, and the judge's name, which the browser remembers.

const NAME = "burnish-judge";
const typing = (element) => element.matches?.("input, textarea, select");

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || typing(event.target)) return;
  const key = (event.shiftKey ? "Shift+" : "") + event.key;
  const button = document.querySelector(`[data-arrow="${CSS.escape(key)}"]:not(:disabled)`);
  if (!button) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  button.click();
}, true); // before the keys of all pages: here a digit is a score

document.getElementById("correction")?.addEventListener("toggle", (event) => {
  if (event.target.open) document.getElementById("completion").focus();
});

// A second key before the next question is there would be about this one again.
let sent = false;
for (const form of document.querySelectorAll("form[method=post]")) {
  form.addEventListener("submit", (event) => {
    if (sent) event.preventDefault();
    sent = true;
  });
}
addEventListener("pageshow", () => { sent = false; });

const name = document.getElementById("judge");
const here = new URL(location.href);
const known = localStorage.getItem(NAME);
if (here.searchParams.has("judge")) localStorage.setItem(NAME, name.value);
else if (known) { here.searchParams.set("judge", known); location.replace(here); }
