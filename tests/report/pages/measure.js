// Appended to a report by test_in_browser.py, which shows it in a frame: what a browser makes of it.
addEventListener("load", () => {
  const box = element => element.getBoundingClientRect();
  const shown = element => box(element).width > 0 && box(element).height > 0;
  const meet = (a, b) =>
    a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
  const inScroller = element => element.closest(".box, nav, svg");
  const all = [...document.body.querySelectorAll("*")].filter(shown);
  const charts = [...document.querySelectorAll("svg.chart")].filter(shown);
  const overlaps = [], outside = [], letters = [];
  for (const chart of charts) {
    const texts = [...chart.querySelectorAll("text")];
    texts.forEach((a, at) => texts.slice(at + 1).forEach(b => {
      if (meet(box(a), box(b))) overlaps.push([a.textContent, b.textContent]);
    }));
    const frame = box(chart.closest("figure"));
    for (const text of chart.querySelectorAll("text")) {
      if (box(text).left < frame.left - 1 || box(text).right > frame.right + 1)
        outside.push(text.textContent);
      letters.push(parseFloat(getComputedStyle(text).fontSize) * box(chart).width / chart.viewBox.baseVal.width);
    }
  }
  const style = getComputedStyle(document.body);
  parent.postMessage(JSON.stringify({
    width: innerWidth,
    scrolls: document.scrollingElement.scrollWidth,
    wider: all.filter(e => !inScroller(e) && box(e).right > innerWidth + 1).map(e => e.tagName + "." + e.className),
    charts: charts.length, overlaps, outside, letters: Math.min(...letters),
    pictures: [...document.images].filter(image => image.naturalWidth > 0).length,
    ground: style.backgroundColor, ink: style.color,
    errors: window.pageErrors || [],
    button: shown(document.getElementById("theme")),
  }), "*");
});
