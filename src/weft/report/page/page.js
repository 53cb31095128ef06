(() => {
  const root = document.documentElement, button = document.getElementById("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const shown = () => root.dataset.theme || (dark.matches ? "dark" : "light");
  const keep = value => { try { localStorage.setItem("weft-theme", value); } catch { /* file: URLs */ } };
  try { root.dataset.theme = localStorage.getItem("weft-theme") || ""; } catch { /* file: URLs */ }
  button.hidden = false;
  button.onclick = () => keep(root.dataset.theme = shown() === "dark" ? "light" : "dark");

  // A name in a legend lights its mechanism up in every chart; a second click ends it.
  const all = [...document.querySelectorAll("[data-series]")];
  const light = name => {
    document.body.classList.toggle("dimmed", Boolean(name));
    for (const part of all) part.classList.toggle("lit", part.dataset.series === name);
  };
  let held = null;
  for (const key of document.querySelectorAll(".key")) {
    key.addEventListener("click", () => light(held = held === key.dataset.series ? null : key.dataset.series));
    key.addEventListener("mouseenter", () => light(key.dataset.series));
    key.addEventListener("mouseleave", () => light(held));
  }
})();
