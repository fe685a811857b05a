
(() => {
  const page = document.documentElement;
  page.classList.add("js");
  const copy = async (button, source) => {
    button.dataset.label ??= button.textContent;
    try {
      await navigator.clipboard.writeText(source.textContent);
      button.textContent = "Copied";
    } catch {
      source.closest("details")?.setAttribute("open", "");
      source.scrollIntoView({ block: "center" });
      getSelection().selectAllChildren(source);
      button.textContent = "Selected: press Ctrl+C";
    }
    const status = document.getElementById("copied");
    if (status) status.textContent = button.textContent;
    setTimeout(() => { button.textContent = button.dataset.label; }, 2500);
  };
  for (const command of document.querySelectorAll("pre.command")) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Copy";
    button.setAttribute("aria-label", "Copy this command");
    button.addEventListener("click", () => copy(button, command.querySelector("code")));
    command.append(button);
  }
  const summary = document.getElementById("copy-summary");
  summary?.addEventListener("click", () => copy(summary, document.getElementById("summary")));
  const chart = document.querySelector(".chart");
  const readout = document.querySelector(".readout");
  if (chart && readout) {
    let lit = [];
    const leave = () => {
      for (const bar of lit) bar.classList.remove("lit");
      chart.classList.remove("highlighting");
      lit = [];
      readout.textContent = "\u00a0";
    };
    chart.addEventListener("pointerover", (event) => {
      leave();
      const lane = event.target.closest(".lane[data-title]");
      if (!lane) return;
      const part = event.target.closest(".bar, .gap");
      if (part?.dataset.k) lit = [...chart.querySelectorAll(`[data-k="${part.dataset.k}"]`)];
      chart.classList.toggle("highlighting", lit.length > 0);
      for (const bar of lit) bar.classList.add("lit");
      readout.textContent = [lane.dataset.title, part?.title].filter(Boolean).join(" — ");
    });
    chart.addEventListener("pointerleave", leave);
  }
})();
