// Draws the charts of a report with uPlot, in the colors of the page's theme.
"use strict";
(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const NARROW = 640;
  let drawn = [];

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function text(value) {
    if (value === null || value === undefined) return "\u2013";
    const size = Math.abs(value);
    if (size > 0 && size < 1e-4) return Number(value.toPrecision(3)).toExponential();
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

  function drawMarks(plot, chart) {
    const { ctx, bbox } = plot, ratio = devicePixelRatio;
    const marks = chart.marks.map((mark) => ({ ...mark, x: Math.round(plot.valToPos(mark.x, "x", true)) }))
      .filter(({ x }) => x >= bbox.left && x <= bbox.left + bbox.width);
    ctx.save();
    ctx.font = `${12 * ratio}px system-ui, sans-serif`;
    ctx.textAlign = "left";
    ctx.textBaseline = "middle";
    ctx.lineWidth = 1.5 * ratio;
    ctx.setLineDash([5 * ratio, 4 * ratio]);
    marks.forEach((mark) => {
      ctx.strokeStyle = color(mark.color);
      ctx.beginPath();
      ctx.moveTo(mark.x, bbox.top);
      ctx.lineTo(mark.x, bbox.top + bbox.height);
      ctx.stroke();
    });
    if (chart.has_mark_labels) drawLabels(ctx, bbox, marks, Boolean(chart.from_zero));
    ctx.restore();
  }

  function drawLabels(ctx, bbox, marks, atBottom) {
    const ratio = devicePixelRatio, height = 16 * ratio, pad = 2 * ratio;
    const widths = marks.map((mark) => ctx.measureText(mark.text).width / ratio);
    const boxes = marks.map((mark, number) => ({ x: mark.x / ratio, width: widths[number] }));
    const places = placeLabels(boxes, bbox.left / ratio, (bbox.left + bbox.width) / ratio);
    places.forEach(({ left, row }, number) => {
      const x = left * ratio, offset = (row + 0.75) * height;
      const y = atBottom ? bbox.top + bbox.height - offset : bbox.top + offset;
      ctx.fillStyle = color("--card");  // Hide the lines of other marks behind the text.
      ctx.fillRect(x - pad, y - height / 2, widths[number] * ratio + 2 * pad, height);
      ctx.fillStyle = color(marks[number].color);
      ctx.fillText(marks[number].text, x, y);
    });
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
      hooks: { draw: [(self) => drawMarks(self, chart)] },
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
