// One prompt across the steps: the slider shows one answer at a time.

function show() {
  const slider = document.getElementById("step");
  if (!slider) return;
  const versions = document.querySelectorAll("[data-version]");
  versions.forEach((version, place) => { version.hidden = place !== Number(slider.value); });
  document.querySelector("output[for=step]").textContent = versions[slider.value]?.dataset.label ?? "";
}

document.addEventListener("input", (event) => { if (event.target.id === "step") show(); });
document.addEventListener("refreshed", show);
show();
