// Places the labels of a chart's vertical marks so that none overlaps another, and few cross another mark's line.
"use strict";
globalThis.placeLabels = (() => {
  /** Distance between a label and its mark, and between two labels, in pixels. */
  const GAP = 6;

  /**
   * Returns one place per mark, in the same order: `{left, row}`, the label's left edge in pixels and its row from 0.
   *
   * @param marks `{x, width}` for each mark: the position of its line and the width of its label, in pixels.
   * @param left, right edges of the area, in pixels. A label that is wider than the area starts at `left`.
   */
  return (marks, left, right) => {
    const placed = [];
    const order = [...marks.keys()].sort((a, b) => marks[a].x - marks[b].x);
    for (const number of order) {
      const { x, width } = marks[number];
      const sides = [x + GAP, x - GAP - width].filter((start) => start >= left && start + width <= right);
      const starts = sides.length ? sides : [Math.max(left, Math.min(x + GAP, right - width))];
      const candidates = starts.map((start) => {
        const overlaps = (each) => each.left < start + width + GAP && start < each.left + each.width + GAP;
        const rows = new Set(placed.filter(overlaps).map((each) => each.row));
        let row = 0;
        while (rows.has(row)) row += 1;
        const crossed = marks.filter((each) => each.x > start && each.x < start + width).length;
        return { number, left: start, width, row, crossed };
      });
      candidates.sort((a, b) => a.crossed - b.crossed || a.row - b.row);
      placed.push(candidates[0]);
    }
    placed.sort((a, b) => a.number - b.number);
    return placed.map((each) => ({ left: each.left, row: each.row }));
  };
})();
