// The form over a config: what is wrong with it, or its YAML, is shown in place; a run that was started is followed.

const form = document.querySelector("form.settings");
const problems = form.querySelector(".problems"), yaml = form.querySelector("[data-yaml]");

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const values = { do: event.submitter?.value ?? "check" };
  for (const [key, value] of new FormData(form)) if (value.trim() !== "") values[key] = value;
  for (const button of form.querySelectorAll("button")) button.disabled = true;
  let told;
  try {
    const answer = await fetch(form.getAttribute("action"), { method: "POST", body: JSON.stringify(values),
      headers: { "Content-Type": "application/json" } });
    told = await answer.json();
  } catch {
    told = { error: "the page cannot be reached" };
  }
  for (const button of form.querySelectorAll("button")) button.disabled = false;
  problems.hidden = !told.error;
  problems.textContent = told.error ?? "";
  yaml.hidden = !told.yaml;
  yaml.textContent = told.yaml ?? "";
  form.querySelector("[data-command]").textContent = told.command ?? "";
  if (told.is_started) location.href = `/start?${new URLSearchParams({ stage: values.stage, begun: told.run })}`;
  else (told.error ? problems : yaml).scrollIntoView({ block: "nearest" });
});

// A run that was started a moment ago: until its folder is there, the page looks again.
if (document.querySelector(".begun") && !document.querySelector(".begun a[href^='/run/']")) {
  setTimeout(() => location.reload(), 3000);
}
