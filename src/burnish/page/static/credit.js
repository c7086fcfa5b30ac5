// The tokens of a response: arrow keys move through them, and a panel shows the row of numbers of the one in hand.

const tokens = [...document.querySelectorAll(".tokens .token")];
const panel = document.getElementById("panel");
const table = document.querySelector("table.numbers");
const heads = [...table.tHead.rows[0].cells].slice(1).map((cell) => cell.textContent);

function show(token) {
  const cells = [...table.tBodies[0].rows[tokens.indexOf(token)].cells];
  const name = document.createElement("strong");
  name.textContent = cells[0].textContent;
  const list = document.createElement("dl");
  heads.forEach((head, place) => {
    const term = document.createElement("dt"), number = document.createElement("dd");
    term.textContent = head;
    number.textContent = cells[place + 1].textContent;
    list.append(term, number);
  });
  panel.replaceChildren(name, list);
  panel.hidden = false;
}

function hide() {
  const held = tokens.find((token) => token === document.activeElement);
  if (held) show(held);
  else panel.hidden = true;
}

tokens.forEach((token, place) => {
  token.addEventListener("focus", () => {
    for (const other of tokens) {
      other.tabIndex = other === token ? 0 : -1;
      other.ariaSelected = String(other === token);
    }
    show(token);
  });
  token.addEventListener("blur", () => { panel.hidden = true; });
  token.addEventListener("pointerenter", () => show(token));
  token.addEventListener("pointerleave", hide);
  token.addEventListener("keydown", (event) => {
    const to = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: tokens.length - 1 }[event.key];
    if (to === undefined || !tokens[to]) return;
    event.preventDefault();
    tokens[to].focus();
  });
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") { document.activeElement.blur(); panel.hidden = true; }
});
