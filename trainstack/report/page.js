// Draws the charts of a report with uPlot, in the colors of the page's theme.
"use strict";
(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const NARROW = 640, LABELLED_MARKS = 6;
  let drawn = [];

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function text(value) {
    if (value === null || value === undefined) return "\u2013";
    const size = Math.abs(value);
    if (size > 0 && size < 1e-3) return Number(value.toPrecision(3)).toExponential();
    return Number(value.toPrecision(6)).toLocaleString("en", { maximumFractionDigits: 6 });
  }

  function axis(label, isX) {
    const ink = color("--ink-muted"), grid = color("--grid");
    return {
      label: isX ? label : undefined, stroke: ink, font: "12px system-ui, sans-serif",
      labelFont: "12px system-ui, sans-serif",
      grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 }, labelSize: 22, labelGap: 2,
      size: isX ? 34 : 66, space: isX ? 70 : 36, values: (plot, ticks) => ticks.map(text),
      incrs: isX && label === "step" ? [1, 2, 5].flatMap((n) => Array.from({ length: 12 }, (_, e) => n * 10 ** e))
        .sort((a, b) => a - b) : undefined,
    };
  }

  function drawMarks(plot, marks, atBottom) {
    const { ctx, bbox } = plot, ratio = devicePixelRatio;
    ctx.save();
    ctx.font = `${12 * ratio}px system-ui, sans-serif`;
    ctx.textAlign = "left";
    ctx.textBaseline = "alphabetic";
    marks.forEach((mark, number) => {
      const x = Math.round(plot.valToPos(mark.x, "x", true));
      if (x < bbox.left || x > bbox.left + bbox.width) return;
      ctx.strokeStyle = ctx.fillStyle = color(mark.color);
      ctx.lineWidth = 1.5 * ratio;
      ctx.setLineDash([5 * ratio, 4 * ratio]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      if (marks.length > LABELLED_MARKS) return;
      const width = ctx.measureText(mark.text).width, gap = 6 * ratio;
      const fits = x + gap + width <= bbox.left + bbox.width;
      const row = (14 + 16 * (number % 3)) * ratio;
      const y = atBottom ? bbox.top + bbox.height - row : bbox.top + row;
      ctx.fillText(mark.text, fits ? x + gap : x - gap - width, y);
    });
    ctx.restore();
  }

  function series(each) {
    const stroke = color(each.color);
    return {
      label: each.label, stroke, width: each.dash ? 1.5 : 2, dash: each.dash ? [4, 4] : undefined,
      spanGaps: Boolean(each.points), points: each.points ? { show: true, size: 7, fill: stroke } : { show: false },
      value: (plot, value) => text(value),
    };
  }

  function draw(name) {
    const chart = charts[name], place = document.getElementById(`chart-${name}`);
    const height = place.clientWidth < NARROW ? Math.round(chart.height * 0.8) : chart.height;
    const plot = new uPlot({
      width: place.clientWidth, height,
      scales: { x: { time: false }, y: { range: (_, low, high) => range(chart, low, high) } },
      axes: [axis(chart.x, true), axis("", false)],
      series: [{ label: chart.x, value: (_, value) => text(value) }, ...chart.series.map(series)],
      cursor: { y: false, points: { size: 8 } },
      legend: { live: true },
      hooks: { draw: [(self) => drawMarks(self, chart.marks, Boolean(chart.from_zero))] },
    }, chart.columns, place);
    drawn.push({ plot, place, height });
  }

  function range(chart, low, high) {
    if (low === null || high === null) return [0, 1];
    const pad = (high - low || Math.abs(high) || 1) * 0.06;
    return chart.from_zero ? [0, high + pad] : [low - pad, high + pad];
  }

  function redraw() {
    drawn.forEach(({ plot }) => plot.destroy());
    drawn = [];
    Object.keys(charts).forEach(draw);
  }

  let timer = 0;
  addEventListener("resize", () => { clearTimeout(timer); timer = setTimeout(redraw, 100); });
  dark.addEventListener("change", redraw);
  redraw();
})();
