// Keeps a page true while its runs go on. The server says when something is new; the page is then fetched again, and
// its parts marked `data-live` take the place of those shown. Nothing else moves: neither scrolling nor focus.

const link = document.getElementById("link");
let newest = 0;

export async function refresh(url = location.href, wholeForms = false) {
  const mine = ++newest;
  let answer;
  try {
    answer = await fetch(url, { headers: { Accept: "text/html" } });
  } catch {
    link.hidden = false;
    return;
  }
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (mine !== newest) return; // a later one has been asked for
  for (const part of document.querySelectorAll("[data-live]")) {
    const next = fresh.querySelector(`[data-live="${CSS.escape(part.dataset.live)}"]`);
    if (next && next.innerHTML !== part.innerHTML) replace(part, next);
  }
  if (wholeForms) for (const form of document.querySelectorAll("form[data-swap]")) taken(form, fresh);
  document.dispatchEvent(new Event("refreshed"));
}

// What a person has done in a part stays: what is chosen, typed, opened, focused, scrolled.
function replace(part, next) {
  const active = part.contains(document.activeElement) ? document.activeElement : null;
  const place = active && { mark: markOf(active), at: focusables(part).indexOf(active) };
  const kept = new Map();
  for (const own of part.querySelectorAll("input[id], select[id], textarea[id], details[id], [id][data-scrolls]")) {
    kept.set(own.id, { checked: own.checked, value: own.value, open: own.open, top: own.scrollTop,
      atEnd: own.scrollTop + own.clientHeight >= own.scrollHeight - 4 });
  }
  part.replaceChildren(...document.importNode(next, true).childNodes);
  for (const [id, was] of kept) {
    const own = document.getElementById(id);
    if (!own) continue;
    if (own.matches("input, select, textarea")) { own.checked = was.checked; own.value = was.value; }
    if (own.matches("details")) own.open = was.open;
    if (own.matches("[data-scrolls]")) own.scrollTop = was.atEnd ? own.scrollHeight : was.top;
  }
  if (!active) return;
  const now = focusables(part), there = now[place.at];
  const same = now.find((own) => markOf(own) === place.mark) ?? (there?.tagName === active.tagName ? there : null);
  same?.focus({ preventScroll: true });
}

// What stands for an element while its part is replaced: its id, where it leads, or whose summary it is.
const markOf = (element) => `${element.tagName} ${element.id || element.getAttribute("href") || element.parentElement?.id}`;
const focusables = (part) => [...part.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex]")];

// After a step back, forms show what the address says.
function taken(form, fresh) {
  const next = fresh.querySelector(`form[data-swap][action="${CSS.escape(form.getAttribute("action"))}"]`);
  for (const own of form.elements) {
    const then = next && own.name && next.elements[own.name];
    if (then && own !== document.activeElement) own.value = then.value;
  }
}

export function follow(address) {
  if (!address) return;
  let source, known = document.body.dataset.version;
  const listen = () => {
    source = new EventSource(address);
    source.addEventListener("version", (event) => {
      const { version } = JSON.parse(event.data);
      link.hidden = true;
      if (known !== version) refresh();
      known = version;
    });
    source.addEventListener("open", () => { link.hidden = true; document.body.dataset.connected = "yes"; });
    source.addEventListener("error", () => { link.hidden = false; });
  };
  // A browser allows a site few connections: a page that nobody looks at gives its own up.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) source?.close();
    else { listen(); refresh(); }
  });
  addEventListener("pagehide", () => source?.close());
  if (!document.hidden) listen();
}
