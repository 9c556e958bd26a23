// Draws everything once, and again what depends on the strategy chosen.
async function start() {
  if (typeof DecompressionStream === "undefined") {
    byId("trouble").textContent = "This browser is too old for the charts (it lacks"
      + " DecompressionStream); the tables are complete.";
    byId("trouble").hidden = false;
    return;
  }
  drawLegend();
  await drawGantt(everything());
  follow();
  drawComparisons();
  drawOfRun();
  byId("critical").addEventListener("change", () => drawGantt(view));
  byId("same")?.addEventListener("change", () => drawGantt(everything()));
  byId("more").addEventListener("click", () => listStages(Infinity));
  document.querySelectorAll("input[name=run]").forEach((choice) => {
    choice.addEventListener("change", async () => {
      const was = everything(), zoomed = view.left !== was.left || view.right !== was.right;
      shown = Number(choice.value);
      const all = everything();
      await drawGantt(zoomed ? { ...all, left: view.left, right: view.right } : all);
      drawOfRun();
    });
  });
  document.body.dataset.ready = String(Math.round(performance.now()));
}

start();
