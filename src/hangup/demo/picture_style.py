"""The picture's style sheet: one page, no outside resources, light and dark."""

from __future__ import annotations

CSS = """
:root {
  color-scheme: light dark;
  --page: #f7f7f5; --card: #ffffff; --edge: #e4e4e0; --ink: #1b1c1e; --soft: #5f6368;
  --faint: #9a9da3; --grid: #ececea; --step: #eef0f4; --step-edge: #c8cdd6;
  --call: #4f6fd8; --waste: #dc3d43; --waste-wash: #dc3d4312; --good: #1f8a5b;
  --late: #b7791f;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #131416; --card: #1b1d20; --edge: #2c2f34; --ink: #ececec; --soft: #a6abb3;
    --faint: #747a83; --grid: #26292d; --step: #25282d; --step-edge: #444a53;
    --call: #7d97f0; --waste: #f2646a; --waste-wash: #f2646a1a; --good: #4cc38a;
    --late: #e2b04f;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue",
    Arial, sans-serif;
  font-variant-numeric: tabular-nums; -webkit-font-smoothing: antialiased;
}
main { max-width: 1200px; margin: 0 auto; padding: 44px 32px 56px; }
h1 { font-size: 28px; line-height: 1.25; letter-spacing: -0.015em; margin: 0 0 8px; }
h2 { font-size: 17px; letter-spacing: -0.005em; margin: 0; }
p { margin: 0; }
.lead { color: var(--soft); max-width: 104ch; }
.tiles { display: grid; grid-template-columns: repeat(4, 1fr); gap: 14px;
  margin: 28px 0 30px; }
.tile, .story { background: var(--card); border: 1px solid var(--edge);
  border-radius: 12px; }
.tile { padding: 15px 18px 16px; }
.tile h3 { font-size: 12.5px; font-weight: 500; color: var(--soft); margin: 0 0 7px; }
.tile .pair { display: flex; align-items: baseline; gap: 9px; font-size: 23px;
  font-weight: 600; letter-spacing: -0.02em; white-space: nowrap; }
.tile .was { color: var(--waste); }
.tile .to { color: var(--faint); font-weight: 400; font-size: 17px; }
.tile .now { color: var(--good); }
.tile .note { font-size: 12.5px; color: var(--faint); margin-top: 3px; }
.story { padding: 20px 22px 14px; margin: 0 0 20px; }
.story header { display: flex; align-items: baseline; gap: 10px; margin-bottom: 10px; }
.story header span { color: var(--faint); font-size: 13px; }
.legend { display: flex; flex-wrap: wrap; gap: 8px 24px; color: var(--soft);
  font-size: 13px; margin: 0 0 16px; }
.legend svg { vertical-align: -3px; margin-right: 8px; }
footer { color: var(--faint); font-size: 13px; margin-top: 26px; max-width: 96ch; }
.legend svg { display: inline-block; }
.story svg { display: block; width: 100%; height: auto; overflow: visible; }
svg text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue",
  Arial, sans-serif; fill: var(--soft); font-variant-numeric: tabular-nums; }
svg .mode { font-size: 13px; font-weight: 600; fill: var(--ink); }
svg .verdict { font-size: 12.5px; }
svg .row { fill: var(--ink); }
svg .inner { fill: var(--soft); }
svg .tick { font-size: 11px; fill: var(--faint); }
svg .grid { stroke: var(--grid); stroke-width: 1; }
svg .step { fill: var(--step); stroke: var(--step-edge); stroke-width: 1; }
svg .call { fill: var(--call); }
svg .wasted { fill: var(--waste); }
svg .wash { fill: var(--waste-wash); }
svg .cut { stroke: var(--ink); stroke-width: 2; stroke-linecap: round; }
svg .t0 { stroke: var(--waste); stroke-width: 1.6; }
svg .due { stroke: var(--late); stroke-width: 1.4; stroke-dasharray: 4 4; }
svg .flag { font-weight: 600; }
svg .flag.gone, svg .bad { fill: var(--waste); }
svg .over { fill: var(--late); }
svg .good { fill: var(--good); }
svg .count { font-size: 11px; fill: var(--faint); }
svg .count.bad { fill: var(--waste); font-weight: 600; }
@media (max-width: 900px) { .tiles { grid-template-columns: repeat(2, 1fr); } }
"""
