// Everything that is the same on all pages. A view's own module is named in its template's `data-module`.

import { follow, refresh } from "./live.js";
import "./keys.js";

const FORM_DELAY = 150; // ms after the last letter

follow(document.body.dataset.events);

// Forms and links that change only what is shown: the new page's live parts take the place of the old ones.

let typing;
const shown = (form) => {
  const query = new URLSearchParams();
  for (const [key, value] of new FormData(form)) if (value !== "") query.append(key, value);
  const text = query.toString();
  const url = form.getAttribute("action") + (text ? "?" + text : "");
  history.replaceState(null, "", url);
  refresh(url);
};
for (const form of document.querySelectorAll("form[data-swap]")) {
  form.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(shown, FORM_DELAY, form); });
  form.addEventListener("submit", (event) => { event.preventDefault(); shown(form); });
}
document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[data-swap]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  const url = link.getAttribute("href"); // a link in a drawing has no `href` of text
  history.pushState(null, "", url);
  refresh(url, true);
});
document.addEventListener("change", (event) => {
  if (event.target.matches?.("[data-sends]")) event.target.form.submit();
});
addEventListener("popstate", () => refresh(location.href, true));

// A command to copy; where the browser forbids that, it is selected.

document.addEventListener("click", async (event) => {
  const button = event.target.closest?.("button[data-copy]");
  if (!button) return;
  const code = document.getElementById(button.dataset.copy);
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(code);
    button.textContent = "Selected";
  }
  setTimeout(() => { button.textContent = label; }, 1500);
});

// Times that go on.

const ticked = () => {
  for (const place of document.querySelectorAll("[data-since]")) {
    const seconds = Math.max(0, Math.round(Date.now() / 1000 - place.dataset.since));
    place.textContent = seconds < 90 ? `${seconds} s` : `${Math.round(seconds / 60)} min`;
  }
};
setInterval(ticked, 1000);
ticked();

for (const place of document.querySelectorAll("[data-module]")) import(`./${place.dataset.module}.js`);
