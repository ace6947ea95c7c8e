const rows = data.order;
const state = {row: rows[0], bins: data.bins, measure: 'nll'};
function describe(bin, curve) {
  const box = document.getElementById('bin');
  if (curve) {
    box.replaceChildren(legend([['accuracy', hits], ['band', '95 % of calibrated models']]),
      element('p', 'No bins to choose: isotonic regression is the rising curve that fits the labels best (CORP).'));
    return;
  }
  if (!bin) {
    box.replaceChildren(legend([['accuracy', hits], ['over', confidence + ' too high'],
      ['under', confidence + ' too low'], ['whisker', '95 % interval']]),
      element('p', 'Point at a bar, or tap it, to see its samples.'));
    return;
  }
  const names = (list, n) => list?.length ? list.join(', ') + (n > list.length ? ', …' : '') : 'none';
  const about = {
    'bin': `${bin.lo.toFixed(3)} to ${bin.hi.toFixed(3)}`, 'samples': bin.n.toLocaleString('en'),
    [hits]: `${percent(bin.acc)} (95 % interval ${percent(bin.low)} to ${percent(bin.high)})`,
    ['mean ' + confidence]: percent(bin.conf),
    'gap': `${(100*Math.abs(bin.conf - bin.acc)).toFixed(1)} points, ${bin.conf > bin.acc ? 'too high' : 'too low'}`};
  if (bin.rows) Object.assign(about, {'rows, from 0': names(bin.rows, bin.n),
    [missed]: names(bin.misses, Math.round(bin.n*(1 - bin.acc)))});
  box.replaceChildren(facts(about));
}
function hatch(svg) {  // the patterns of gaps, as in the figures of the notebook
  for (const side of ['over', 'under']) {
    const pattern = make(svg, 'pattern', {id: side, width: 5, height: 5, patternUnits: 'userSpaceOnUse',
      patternTransform: 'rotate(45)'});
    make(pattern, 'line', {class: side, x1: 1, x2: 1, y1: 0, y2: 5});
  }
}
function bar(plot, b) {  // a bin: its accuracy, the gap to its confidence, and the interval
  const {svg, x, y, size} = plot, at = x(b.lo) + .5, width = x(b.hi) - x(b.lo) - 1, over = b.conf > b.acc;
  make(svg, 'rect', {class: 'bar', x: at, width, y: y(b.acc), height: size*b.acc});
  make(svg, 'rect', {class: over ? 'over' : 'under', x: at, width, y: y(Math.max(b.acc, b.conf)),
    height: size*Math.abs(b.acc - b.conf), fill: `url(#${over ? 'over' : 'under'})`});
  make(svg, 'line', {class: 'accuracy', x1: at, x2: at + width, y1: y(b.acc), y2: y(b.acc)});
  make(svg, 'line', {class: 'whisker', x1: at + width/2 - .5, x2: at + width/2 - .5, y1: y(b.low), y2: y(b.high)});
}
function diagram() {
  const curve = state.bins === 'corp' && data.diagrams[state.row].corp;
  const bins = data.diagrams[state.row][curve ? 30 : state.bins], most = Math.max(...bins.map(b => b.n));
  const plot = frame('diagram', `reliability diagram, ${state.row}`);
  hatch(plot.svg);
  for (const b of bins) {
    share(plot, b, most, plot.x(b.lo) + .5, plot.x(b.hi) - plot.x(b.lo) - 1, 'share');
    if (!curve) bar(plot, b);
  }
  if (curve) {
    band(plot, curve);
    line(plot, curve.at, curve.value, 'curve before');
  }
  plot.diagonal();
  if (!curve) for (const b of bins)
    pointed(plot, b, `bin ${b.lo} to ${b.hi}: ${b.n} samples, ${hits} ${percent(b.acc)}`, () => describe(b));
  describe(null, curve);
}
function dots() {
  const width = Math.max(300, document.getElementById('dots').clientWidth), line = 40, key = state.measure;
  const all = data.dots.filter(d => d[key] !== null), infinite = data.dots.filter(d => d[key] === null);
  const ends = all.flatMap(d => [d[key], ...(d[key + '_range'] ?? [])]);
  if (key === 'ece') ends.push(0, ...all.map(d => d.chance));
  const least = Math.min(...ends), room = (Math.max(...ends) - least) || 1,
    x = v => 8 + (width - 16)*(v - least)/room;
  const svg = canvas('dots', width, line*all.length + 40, `${key.toUpperCase()} of each calibrator`);
  const show = v => key === 'ece' ? percent(v, 2) : v.toFixed(4);
  all.forEach((d, i) => {
    const y = line*i + 28, chosen = d.chosen ? ' chosen' : '', range = d[key + '_range'];
    make(svg, 'text', {x: 8, y: y - 12, 'font-weight': d.chosen ? 700 : 400}, (d.chosen ? '→ ' : '') + d.name);
    make(svg, 'text', {class: 'soft', x: width - 8, y: y - 12, 'text-anchor': 'end'},
      show(d[key]) + (range ? `  (${show(range[0])} to ${show(range[1])})` : ''));
    make(svg, 'line', {class: 'grid', x1: 8, x2: width - 8, y1: y, y2: y});
    if (range) make(svg, 'line', {class: 'range' + chosen, x1: x(range[0]), x2: x(range[1]), y1: y, y2: y});
    if (key === 'ece') make(svg, 'line', {class: 'chance', x1: x(d.chance), x2: x(d.chance), y1: y - 6, y2: y + 6});
    make(svg, 'circle', {class: 'dot' + chosen, cx: x(d[key]), cy: y, r: 5});
  });
  const base = line*all.length + 6, unit = key === 'ece' ? 'ECE' : 'NLL, nats';
  for (const [share, anchor] of [[0, 'start'], [1/3, 'middle'], [2/3, 'middle'], [1, 'end']]) {
    const v = least + share*room;
    make(svg, 'line', {class: 'grid', x1: x(v), x2: x(v), y1: 20, y2: base});
    make(svg, 'text', {class: 'soft', x: x(v), y: base + 14, 'text-anchor': anchor}, show(v));
  }
  const left_out = infinite.length ? `; infinite, not drawn: ${infinite.map(d => d.name).join(', ')}` : '';
  make(svg, 'text', {x: 8, y: base + 30}, unit + left_out);
}
function classes() {
  const place = document.getElementById('classes');
  place.replaceChildren(...data.classes.map((c, i) => {
    const figure = element('figure', ''), caption = element('figcaption', '');
    caption.append(element('b', c.name), ...[c.n, ...c.rows[state.row].lines].map(text => element('span', text)));
    figure.append(caption, Object.assign(element('div', ''), {id: `class-${i}`}));
    return figure;
  }));
  data.classes.forEach((c, i) => {
    const plot = frame(`class-${i}`, `reliability diagram of the class ${c.name}, ${state.row}`, 160, 0);
    for (const b of c.rows[state.row].bins) bar(plot, b);
    plot.diagonal();
  });
}
function draw() {
  const names = Object.fromEntries(rows.map((r, i) => [r, i ? 'after: ' + r : 'before']));
  buttons('diagram-switches', {row: names, bins: BINNINGS});
  buttons('dot-switches', {measure: {nll: 'NLL', ece: 'ECE'}});
  document.getElementById('chance').hidden = state.measure !== 'ece';
  diagram();
  dots();
  if (!data.classes.length) return;  // for two classes there is no such section
  buttons('class-switches', {row: names});
  classes();
}
addEventListener('resize', dots);
draw();
