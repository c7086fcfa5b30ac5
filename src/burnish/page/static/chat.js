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

function answers(place, prompt) {
  const shown = new Map();
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
    if (texts[0].trim() === texts[1].trim()) return;
    names.forEach((name, number) => {
      const button = made("button", "This one is better");
      button.type = "button";
      button.addEventListener("click", async () => {
        for (const other of place.querySelectorAll("button")) other.disabled = true;
        const kept = await send(place.dataset.prefer, { prompt, first: texts[0], second: texts[1], from: names,
          better: ["first", "second"][number], judge: localStorage.getItem(NAME) ?? "" });
        const told = await kept.json();
        button.textContent = told.error ?? "Kept in preferences.jsonl";
      });
      shown.get(name).append(button);
    });
  };
  return { hear, finish };
}

function scores(place) {
  place.replaceChildren();
  const hear = ({ parts, reward }) => {
    const table = made("table"), head = table.createTHead().insertRow(), body = table.createTBody();
    for (const title of ["part", "score", "weight", "counts", "per token"]) head.append(made("th", title));
    for (const part of parts) {
      const row = body.insertRow();
      row.append(made("td", part.name), made("td", part.score.toFixed(3), "number"), made("td", part.weight, "number"),
        made("td", (part.score * part.weight).toFixed(3), "number"),
        made("td", part.tokens?.map((one) => one.toFixed(2)).join(" ") ?? "–"));
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
    const values = Object.fromEntries(new FormData(form));
    const shown = values.do === "answer"
      ? answers(document.querySelector("[data-answers]"), values.prompt) : scores(document.querySelector("[data-scores]"));
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
