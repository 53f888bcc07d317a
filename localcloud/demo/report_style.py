"""The report's style sheet, with light and dark themes and without external fonts or images."""

STYLE = """
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --line: #e3e6ea; --grid: #edeff2;
  --ink: #16191d; --ink-soft: #4b525b; --ink-muted: #757d88;
  --train: #2a6fd6; --validation: #c2570c; --second: #5b8fe0; --boot: #a7b4c4; --boot-alt: #c3ccd8; --life: #edf0f4;
  --bad: #c4302b; --good: #1a7f4b; --good-wash: #e6f4ec; --bad-wash: #fbeaea; --gap: #f7efe2; --on-bar: #ffffff;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #101317; --card: #181c22; --line: #2a3038; --grid: #232931;
    --ink: #eceff3; --ink-soft: #b4bcc7; --ink-muted: #8b94a1;
    --train: #6aa5f5; --validation: #f0985a; --second: #4a82d4; --boot: #56616f; --boot-alt: #434c58; --life: #232931;
    --bad: #f2716b; --good: #54c48a; --good-wash: #16291f; --bad-wash: #33191a; --gap: #2b251b; --on-bar: #0d1014;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 40px 24px 64px; }
header { margin-bottom: 28px; }
.eyebrow { display: flex; flex-wrap: wrap; gap: 4px 12px; align-items: center; color: var(--ink-muted);
  font-size: 13px; margin: 0 0 10px; }
.badge { padding: 2px 10px; border-radius: 999px; font-weight: 600; color: var(--good); background: var(--good-wash); }
.badge.bad { color: var(--bad); background: var(--bad-wash); }
h1 { font-size: 28px; line-height: 1.25; letter-spacing: -0.015em; font-weight: 650; margin: 0; max-width: 34em;
  text-wrap: balance; }
h2 { font-size: 17px; margin: 0 0 2px; font-weight: 620; }
.note { color: var(--ink-muted); font-size: 13px; margin: 0 0 14px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(128px, 1fr)); gap: 12px; margin-bottom: 16px; }
.tile, section { background: var(--card); border: 1px solid var(--line); border-radius: 12px; }
.tile { padding: 13px 14px; }
.tile b { display: block; font-size: 23px; font-weight: 640; letter-spacing: -0.01em; line-height: 1.25; }
.tile span { color: var(--ink-soft); font-size: 13px; }
.tile small { display: block; color: var(--ink-muted); font-size: 12px; margin-top: 2px; }
section { padding: 20px 22px; margin-bottom: 16px; }
section.problems { border-color: var(--bad); }
section.problems ul { margin: 6px 0 0; padding-left: 18px; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 16px; }
@media (max-width: 780px) { .pair { grid-template-columns: 1fr; } h1 { font-size: 23px; } main { padding: 24px 14px; } }
.scroll { overflow-x: auto; }
.scroll svg { min-width: 720px; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--ink-soft); font-size: 13px; }
.legend { display: flex; flex-wrap: wrap; gap: 6px 18px; font-size: 13px; color: var(--ink-soft); margin: 0 0 12px; }
.legend i { display: inline-block; width: 14px; height: 10px; border-radius: 2px; margin-right: 6px; }
.legend i.stroke { height: 0; border-top: 2px solid; border-radius: 0; vertical-align: middle; }
.legend i.dashed { border-top-style: dashed; }
.legend i.triangle { width: 0; height: 0; border-radius: 0; background: none; border: 6px solid transparent;
  border-top: 9px solid var(--bad); border-bottom: 0; }
.grid { stroke: var(--grid); } .axis { stroke: var(--line); }
svg text.tick, svg text.axis-name, svg text.row-note { fill: var(--ink-muted); font-size: 12px; }
.tick { font-variant-numeric: tabular-nums; }
.end { text-anchor: end; } .middle { text-anchor: middle; }
.series { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.series.train { stroke: var(--train); } .series.validation { stroke: var(--validation); }
.dot { stroke: var(--card); stroke-width: 2; } .dot.validation { fill: var(--validation); }
.hit { fill: transparent; } .hit:hover { fill: var(--train); fill-opacity: 0.35; }
.unigram { stroke: var(--ink-muted); stroke-width: 1.5; stroke-dasharray: 2 4; }
.interruption { stroke: var(--bad); stroke-width: 1.5; stroke-dasharray: 5 3; }
svg text.flag { fill: var(--bad); font-weight: 600; font-size: 12.5px; }
.resume { fill: var(--good); }
svg text.end-label { fill: var(--ink); font-weight: 600; } svg text.end-label.ink-muted { fill: var(--ink-muted); }
.gap { fill: var(--gap); } svg text.gap-label { text-anchor: middle; font-size: 12px; fill: var(--ink-soft); }
.bar.life { fill: var(--life); } .boot-0 { fill: var(--boot); } .boot-1 { fill: var(--boot-alt); }
.bar.failed { fill: var(--bad); } .generation-0 { fill: var(--second); } .generation-1 { fill: var(--train); }
.bar { stroke: var(--card); stroke-width: 1; } .bar:hover { opacity: 0.8; }
svg text.bar-label { fill: var(--on-bar); font-size: 12px; font-weight: 600; text-anchor: middle;
  pointer-events: none; }
svg text.row-name { fill: var(--ink); font-weight: 600; font-size: 13px; }
.interrupted { fill: var(--bad); } .interrupted-line { stroke: var(--bad); stroke-width: 1.5; fill: none; }
.mark { fill: var(--ink-muted); stroke: var(--card); stroke-width: 1.5; }
.mark.bad, .mark.interruption-notice { fill: var(--bad); }
.mark.run-finished { fill: var(--good); }
table { width: 100%; border-collapse: collapse; font-size: 14px; }
th { text-align: left; font-weight: 560; color: var(--ink-muted); font-size: 12.5px; padding: 6px 10px 6px 0;
  border-bottom: 1px solid var(--line); }
td { padding: 7px 10px 7px 0; border-bottom: 1px solid var(--grid); vertical-align: top; }
tr:last-child td { border-bottom: 0; }
td.figure, th.figure { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
tfoot td { font-weight: 640; border-top: 1px solid var(--line); border-bottom: 0; }
code { font: 12.5px ui-monospace, "SF Mono", Menlo, Consolas, monospace; overflow-wrap: anywhere; }
.saved { color: var(--good); font-weight: 640; }
td:has(.meter) { width: 45%; vertical-align: middle; }
.meter { height: 6px; border-radius: 3px; background: var(--boot); }
.empty { color: var(--ink-muted); margin: 8px 0; }
footer { color: var(--ink-muted); font-size: 12.5px; margin-top: 24px; }
"""
