// Keys for those who keep their hands on them. An element with `data-key` is clicked or focused by its key; `j` and `k`
// walk through elements marked `data-row`.

const typing = (element) => element.matches?.("input:not([type=checkbox]), textarea, select, [contenteditable]");

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape" && typing(event.target)) event.target.blur();
  if (typing(event.target)) return;
  const own = document.querySelector(`[data-key="${CSS.escape(event.key)}"]:not(:disabled)`);
  if (own) {
    event.preventDefault();
    if (event.repeat) return; // a key that is held down is pressed once
    if (own.matches("input, select, textarea")) { own.focus(); own.select?.(); } else { own.focus(); own.click(); }
  } else if (event.key === "j" || event.key === "k") {
    const rows = [...document.querySelectorAll("[data-row]")];
    const at = rows.indexOf(document.activeElement);
    rows[Math.min(rows.length - 1, Math.max(0, at + (event.key === "j" ? 1 : -1)))]?.focus();
  } else if (event.key === "x" && !event.repeat && document.activeElement.matches("[data-row]")) {
    document.activeElement.closest("tr, article")?.querySelector("input[type=checkbox]")?.click();
  }
});
