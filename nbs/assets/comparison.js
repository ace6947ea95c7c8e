const state = {bins: data.bins};
const models = data.models;  // of the classes old and new: circles and squares
function describe(bin) {
  const box = document.getElementById('bin'), named = models.map(m => [m.name, `${m.name}, ECE ${m.ece}`]);
  if (state.bins === 'corp') {
    box.replaceChildren(legend([...named, ['band', '95 % of calibrated models']]),
      element('p', 'No bins to choose: isotonic regression is the rising curve that fits the labels best (CORP).'));
  } else if (!bin) {
    box.replaceChildren(legend([...named, ['whisker', '95 % interval']]),
      element('p', 'Point at a bin, or tap it, to see its samples.'));
  } else {
    const about = {'bin': `${bin.lo.toFixed(3)} to ${bin.hi.toFixed(3)}`};
    for (const m of models) {
      const b = m.bins[state.bins].find(b => b.lo === bin.lo);
      about[m.name] = b ? `${b.n.toLocaleString('en')} samples; ${hits} ${percent(b.acc)} (95 % interval `
        + `${percent(b.low)} to ${percent(b.high)}); mean ${confidence} ${percent(b.conf)}` : 'no samples';
    }
    box.replaceChildren(facts(about));
  }
}
function diagram() {
  const corp = state.bins === 'corp', binned = models.map(m => m.bins[corp ? 30 : state.bins]);
  const most = Math.max(...binned.flat().map(b => b.n));
  const plot = frame('diagram', 'reliability diagrams of the old and the new model');
  plot.diagonal();
  models.forEach(({name, corp: curve}, i) => {  // side by side in each bin
    const half = b => (plot.x(b.hi) - plot.x(b.lo) - 1)/2;
    for (const b of binned[i]) share(plot, b, most, plot.x(b.lo) + .5 + i*half(b), half(b), `share ${name}`);
    if (corp) {
      band(plot, curve, `band ${name}`);
      line(plot, curve.at, curve.value, `curve ${name}`);
    } else {
      for (const b of binned[i]) make(plot.svg, 'line', {class: `interval ${name}`, x1: plot.x(b.conf),
        x2: plot.x(b.conf), y1: plot.y(b.low), y2: plot.y(b.high)});
      line(plot, binned[i].map(b => b.conf), binned[i].map(b => b.acc), `curve ${name}`);
      for (const b of binned[i]) mark(plot.svg, plot.x(b.conf), plot.y(b.acc), name);
    }
  });
  const all = Object.values(Object.fromEntries(binned.flat().map(b => [b.lo, b])));
  if (!corp) for (const b of all) pointed(plot, b, `bin ${b.lo} to ${b.hi}`, () => describe(b));
  describe(null);
}
function mark(svg, x, y, name) {
  if (name === 'old') make(svg, 'circle', {class: 'dot old', cx: x, cy: y, r: 4});
  else make(svg, 'rect', {class: 'dot new', x: x - 3.5, y: y - 3.5, width: 7, height: 7});
}
function differences() {  // each row has a scale of its own, which shows its margin and its interval
  const width = Math.max(300, document.getElementById('differences').clientWidth), narrow = width < 480;
  const row = narrow ? 84 : 66, middle = width/2, all = data.differences;
  const svg = canvas('differences', width, row*all.length + 20, 'differences, new minus old');
  all.forEach((d, i) => {
    const top = row*i, y = top + (narrow ? 48 : 32), ends = [d.low, d.high, d.value].filter(v => v !== null);
    const room = Math.max(1.4*d.margin, ...ends.map(v => 1.05*Math.abs(v))) || 1, x = v => middle + (middle - 8)*v/room;
    make(svg, 'text', {x: 8, y: top + 14, 'font-weight': 700}, d.name);
    make(svg, 'text', {class: d.style, x: width - 8, y: top + 14, 'text-anchor': 'end', 'font-weight': 700}, d.verdict);
    make(svg, 'text', narrow ? {x: 8, y: top + 30} : {x: middle, y: top + 14, 'text-anchor': 'middle'}, d.text);
    make(svg, 'rect', {class: 'margin', x: x(-d.margin), width: x(d.margin) - x(-d.margin), y: y - 10, height: 20});
    make(svg, 'line', {class: 'zero', x1: middle, x2: middle, y1: y - 10, y2: y + 10});
    make(svg, 'text', {class: 'soft', x: middle, y: y + 23, 'text-anchor': 'middle'}, d.margin_text);
    if (d.value === null) return;
    make(svg, 'line', {class: `range ${d.style}`, x1: x(d.low), x2: x(d.high), y1: y, y2: y});
    make(svg, 'circle', {class: `dot ${d.style}`, cx: x(d.value), cy: y, r: 5});
  });
  make(svg, 'text', {class: 'soft', x: 8, y: row*all.length + 14}, '← the new model is better');
  make(svg, 'text', {class: 'soft', x: width - 8, y: row*all.length + 14, 'text-anchor': 'end'}, 'it is worse →');
}
function draw() {
  buttons('diagram-switches', {bins: BINNINGS});
  diagram();
  differences();
}
addEventListener('resize', differences);
draw();
