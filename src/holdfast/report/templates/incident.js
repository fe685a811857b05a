
(() => {
  const page = document.documentElement;
  page.classList.add("js");
  for (const command of document.querySelectorAll("pre.command")) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "copy";
    button.addEventListener("click", async () => {
      const text = command.querySelector("code").textContent;
      try {
        await navigator.clipboard.writeText(text);
        button.textContent = "copied";
      } catch {
        getSelection().selectAllChildren(command.querySelector("code"));
        button.textContent = "selected";
      }
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    });
    command.append(button);
  }
  const chart = document.querySelector("svg");
  const readout = document.querySelector(".readout");
  if (chart && readout) {
    let lit = [];
    chart.addEventListener("pointerover", (event) => {
      for (const bar of lit) bar.classList.remove("lit");
      const bar = event.target.closest("[data-k]");
      const shown = bar || event.target.closest(".gap, .lane");
      lit = bar ? [...chart.querySelectorAll(`[data-k="${bar.dataset.k}"]`)] : [];
      chart.classList.toggle("highlighting", lit.length > 0);
      for (const other of lit) other.classList.add("lit");
      const lane = event.target.closest(".lane");
      const parts = [lane, shown === lane ? null : shown].filter(Boolean);
      readout.textContent = parts.map((part) => part.querySelector("title").textContent).join(" — ") || "\u00a0";
    });
    chart.addEventListener("pointerleave", () => {
      for (const bar of lit) bar.classList.remove("lit");
      chart.classList.remove("highlighting");
      readout.textContent = "\u00a0";
    });
  }
  addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details")) details.open = true;
  });
})();
