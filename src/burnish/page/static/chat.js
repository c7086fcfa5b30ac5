// Asks a run's models and shows what they say as it comes, a line of JSON each. Texts are set as texts, never as markup.

const NAME = "burnish-judge";
const made = (tag, text = "", type = "") => {
  const element = document.createElement(tag);
  element.textContent = text;
  if (type) element.className = type;
  return element;
};

async function* lines(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const part of parts) yield JSON.parse(part);
  }
}

// What was said so far, for models with a chat template: both sides go on from the same answers.
const conversation = [];
const thread = document.querySelector("[data-thread]");

function goOn(place, prompt, answer) {
  conversation.push({ role: "user", content: prompt }, { role: "assistant", content: answer });
  place.replaceChildren();
  told();
  const box = document.querySelector("[data-goes-on] textarea");
  box.value = "";
  box.focus();
}

function told() {
  thread.hidden = !conversation.length;
  thread.replaceChildren(...conversation.map(({ role, content }) => {
    const own = made("p", "", role);
    own.append(made("b", role === "user" ? "you" : "model"), made("span", content, "said"));
    return own;
  }));
  if (!conversation.length) return;
  const again = made("button", "Start over");
  again.type = "button";
  again.addEventListener("click", () => { conversation.length = 0; told(); });
  thread.append(again);
}

function answers(place, prompt, goesOn) {
  const shown = new Map();
  const before = conversation.length ? JSON.stringify(conversation) : "";
  place.replaceChildren();
  const section = (name) => {
    const own = made("section", "", "response");
    own.append(made("h2", name), made("div", "", "said"));
    place.append(own);
    shown.set(name, own);
    return own;
  };
  const hear = ({ answer, text }) => {
    (shown.get(answer) ?? section(answer)).querySelector(".said").textContent = text;
  };
  const finish = () => {
    if (shown.size < 2) return;
    const names = [...shown.keys()];
    const texts = names.map((name) => shown.get(name).querySelector(".said").textContent);
    const same = texts[0].trim() === texts[1].trim();
    names.forEach((name, number) => {
      if (goesOn && texts[number].trim()) {
        const on = made("button", "Go on from this");
        on.type = "button";
        on.addEventListener("click", () => goOn(place, prompt, texts[number]));
        shown.get(name).append(on);
      }
      if (same) return;
      const button = made("button", "This one is better", "better");
      button.type = "button";
      button.addEventListener("click", async () => {
        for (const other of place.querySelectorAll("button.better")) other.disabled = true;
        const kept = await send(place.dataset.prefer, { prompt, messages: before, first: texts[0], second: texts[1],
          from: names, better: ["first", "second"][number], judge: localStorage.getItem(NAME) ?? "" });
        const told = await kept.json();
        button.textContent = told.error ?? "Kept in preferences.jsonl";
      });
      shown.get(name).append(" ", button);
    });
  };
  return { hear, finish };
}

// How a reward model judges the text as it grows: a piece is coloured by what it changed.
function grown(part) {
  const own = made("article", "", "group"), tokens = made("div", "", "tokens");
  const scores = part.growing.map((piece) => piece.score);
  const changes = scores.map((score, at) => (at ? score - scores[at - 1] : 0));
  const largest = Math.max(...changes.map(Math.abs)) || 1;
  part.growing.slice(1).forEach((piece, at) => {
    const change = changes[at + 1];
    const strength = Math.round(10 * Math.sqrt(Math.abs(change) / largest));
    const token = made("span", "", `token s${strength}${change < 0 ? " minus" : ""}`);
    token.title = `${piece.score.toFixed(3)} (${change < 0 ? "" : "+"}${change.toFixed(3)})`;
    token.append(made("b", piece.text.replaceAll("\n", "↵")), made("small", piece.score.toFixed(2)));
    tokens.append(token);
  });
  own.append(made("h3", `${part.name}: its score if the text ended there`), tokens, made("p",
    `Nothing at all: ${scores[0].toFixed(2)}. Solid line: the score rises with this piece; dashed line: it falls. `
    + "Of a long text, pieces are several tokens.", "small"));
  return own;
}

function scores(place) {
  const growing = document.querySelector("[data-growing]");
  place.replaceChildren();
  growing.replaceChildren();
  const hear = ({ parts, reward }) => {
    const table = made("table"), head = table.createTHead().insertRow(), body = table.createTBody();
    for (const title of ["part", "score", "weight", "counts", "per token"]) head.append(made("th", title));
    for (const part of parts) {
      const row = body.insertRow();
      row.append(made("td", part.name), made("td", part.score.toFixed(3), "number"), made("td", part.weight, "number"),
        made("td", (part.score * part.weight).toFixed(3), "number"),
        made("td", part.tokens?.map((one) => one.toFixed(2)).join(" ") ?? (part.growing ? "below" : "–")));
      if (part.growing) growing.append(grown(part));
    }
    const last = body.insertRow();
    last.append(made("th", "reward"), made("td"), made("td"), made("td", reward.toFixed(3), "number"), made("td"));
    place.replaceChildren(table);
  };
  return { hear, finish() {} };
}

const send = (address, values, signal) => fetch(address, { method: "POST", signal,
  headers: { "Content-Type": "application/json" }, body: JSON.stringify(values) });

for (const form of document.querySelectorAll(".asking")) {
  const button = form.querySelector("button:not([type])"), stop = form.querySelector("[data-stop]");
  const status = form.querySelector("[data-status]");
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit(button);
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (button.disabled) return;
    const values = Object.fromEntries(new FormData(form)), goesOn = "goesOn" in form.dataset;
    if (values.do === "answer") values.who = new FormData(form).getAll("who");
    if (goesOn && conversation.length) values.messages = JSON.stringify(conversation);
    const shown = values.do === "answer"
      ? answers(document.querySelector("[data-answers]"), values.prompt, goesOn)
      : scores(document.querySelector("[data-scores]"));
    const ending = new AbortController();
    let trouble = "";
    stop.onclick = () => ending.abort();
    button.disabled = true;
    stop.hidden = false;
    status.textContent = "asking";
    try {
      const answer = await send(form.getAttribute("action"), values, ending.signal);
      if (!answer.ok) throw new Error((await answer.json()).error);
      for await (const message of lines(answer)) {
        if (message.error) trouble = message.error;
        else if (message.doing) status.textContent = message.doing;
        else { status.textContent = "answering"; shown.hear(message); }
      }
      if (!trouble) shown.finish();
    } catch (error) {
      trouble = ending.signal.aborted ? "stopped" : error.message || "the page cannot be reached";
    }
    status.textContent = trouble;
    button.disabled = false;
    stop.hidden = true;
  });
}
