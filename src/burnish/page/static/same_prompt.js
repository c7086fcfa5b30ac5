// One prompt across the steps: the slider shows one answer at a time.

function show() {
  const slider = document.getElementById("step");
  if (!slider) return;
  const answers = document.querySelectorAll("[data-answer]");
  answers.forEach((answer, place) => { answer.hidden = place !== Number(slider.value); });
  document.querySelector("output[for=step]").textContent = answers[slider.value]?.dataset.label ?? "";
}

document.addEventListener("input", (event) => { if (event.target.id === "step") show(); });
document.addEventListener("refreshed", show);
show();
