'use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const rows = data.order;
const state = {row: rows[0], bins: data.bins, measure: 'nll'};
const [confidence, hits, missed] = data.words;
const percent = (v, digits = 1) => (100*v).toFixed(digits) + ' %';
function make(parent, name, attributes, text) {
  const e = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value);
  if (text !== undefined) e.textContent = text;
  parent.append(e);
  return e;
}
function element(name, text) { const e = document.createElement(name); e.textContent = text; return e; }
function canvas(id, width, height, label) {
  const svg = make(document.createElement('div'), 'svg', {viewBox: `0 0 ${width} ${height}`, role: 'img',
    'aria-label': label});
  document.getElementById(id).replaceChildren(svg);
  return svg;
}
function buttons(id, groups) {
  document.getElementById(id).replaceChildren(...Object.entries(groups).map(([name, options]) => {
    const group = element('div', '');
    for (const [value, text] of Object.entries(options)) {
      const button = element('button', text);
      button.type = 'button';
      button.setAttribute('aria-pressed', state[name] === value);
      button.onclick = () => { state[name] = value; draw(); };
      group.append(button);
    }
    return group;
  }));
}
function describe(bin, curve) {
  const box = document.getElementById('bin');
  if (curve) {
    const list = Object.assign(element('p', ''), {className: 'legend'});
    for (const [name, text] of [['accuracy', hits], ['band', '95 % of calibrated models']]) {
      const item = element('span', text);
      item.prepend(Object.assign(element('i', ''), {className: name}));
      list.append(item, ' ');
    }
    box.replaceChildren(list, element('p', 'No bins to choose: isotonic regression is the rising curve that fits '
      + 'the labels best (CORP).'));
    return;
  }
  if (!bin) {
    const list = Object.assign(element('p', ''), {className: 'legend'});
    for (const [name, text] of [['accuracy', hits], ['over', confidence + ' too high'],
        ['under', confidence + ' too low'], ['whisker', '95 % interval']]) {
      const item = element('span', text);
      item.prepend(Object.assign(element('i', ''), {className: name}));
      list.append(item, ' ');
    }
    box.replaceChildren(list, element('p', 'Point at a bar, or tap it, to see its samples.'));
    return;
  }
  const names = (list, n) => list?.length ? list.join(', ') + (n > list.length ? ', …' : '') : 'none';
  const facts = {
    'bin': `${bin.lo.toFixed(3)} to ${bin.hi.toFixed(3)}`, 'samples': bin.n.toLocaleString('en'),
    [hits]: `${percent(bin.acc)} (95 % interval ${percent(bin.low)} to ${percent(bin.high)})`,
    ['mean ' + confidence]: percent(bin.conf),
    'gap': `${(100*Math.abs(bin.conf - bin.acc)).toFixed(1)} points, ${bin.conf > bin.acc ? 'too high' : 'too low'}`,
    'rows, from 0': names(bin.rows, bin.n), [missed]:
      names(bin.misses, Math.round(bin.n*(1 - bin.acc)))};
  if (!bin.rows) for (const name of Object.keys(facts).slice(5)) delete facts[name];
  const list = document.createElement('dl');
  for (const [name, text] of Object.entries(facts)) list.append(element('dt', name), element('dd', text));
  box.replaceChildren(list);
}
function diagram() {
  const curve = state.bins === 'corp' && data.diagrams[state.row].corp;
  const bins = data.diagrams[state.row][curve ? 30 : state.bins], left = 46, size = 320, below = 70, top = 12;
  const svg = canvas('diagram', left + size + 10, top + size + below + 44, `reliability diagram, ${state.row}`);
  const x = v => left + size*v, y = v => top + size*(1 - v), most = Math.max(...bins.map(b => b.n)),
    base = top + size + below;
  for (const side of ['over', 'under']) {  // hatched, as in the figures of the notebook
    const pattern = make(svg, 'pattern', {id: side, width: 5, height: 5, patternUnits: 'userSpaceOnUse',
      patternTransform: 'rotate(45)'});
    make(pattern, 'line', {class: side, x1: 1, x2: 1, y1: 0, y2: 5});
  }
  for (const v of [0, .2, .4, .6, .8, 1]) {
    make(svg, 'line', {class: 'grid', x1: left, x2: left + size, y1: y(v), y2: y(v)});
    make(svg, 'text', {class: 'soft', x: left - 6, y: y(v) + 4, 'text-anchor': 'end'}, v.toFixed(1));
    make(svg, 'text', {class: 'soft', x: x(v), y: base + 16, 'text-anchor': 'middle'}, v.toFixed(1));
  }
  for (const b of bins) {
    const at = x(b.lo), w = x(b.hi) - at - 1, over = b.conf > b.acc;
    make(svg, 'rect', {class: 'share', x: at + .5, width: w, y: base - (below - 12)*b.n/most,
      height: (below - 12)*b.n/most});
    if (curve) continue;
    make(svg, 'rect', {class: 'bar', x: at + .5, width: w, y: y(b.acc), height: size*b.acc});
    make(svg, 'rect', {class: over ? 'over' : 'under', x: at + .5, width: w, y: y(Math.max(b.acc, b.conf)),
      height: size*Math.abs(b.acc - b.conf), fill: `url(#${over ? 'over' : 'under'})`});
    make(svg, 'line', {class: 'accuracy', x1: at + .5, x2: at + .5 + w, y1: y(b.acc), y2: y(b.acc)});
    make(svg, 'line', {class: 'whisker', x1: at + w/2, x2: at + w/2, y1: y(b.low), y2: y(b.high)});
  }
  if (curve) {  // isotonic regression, and where that of a calibrated model lies
    const places = ends => ends.map((v, i) => `${x(curve.at[i])},${y(v)}`);
    make(svg, 'polygon', {class: 'band', points: [...places(curve.low), ...places(curve.high).reverse()].join(' ')});
    make(svg, 'polyline', {class: 'curve before', points: places(curve.value).join(' ')});
  }
  make(svg, 'line', {class: 'diagonal', x1: x(0), y1: y(0), x2: x(1), y2: y(1)});
  make(svg, 'text', {x: left + size/2, y: base + 36, 'text-anchor': 'middle'}, confidence);
  make(svg, 'text', {transform: `translate(12 ${top + size/2}) rotate(-90)`, 'text-anchor': 'middle'}, hits);
  make(svg, 'text', {class: 'soft', transform: `translate(12 ${base - below/2 + 6}) rotate(-90)`,
    'text-anchor': 'middle'}, 'samples');
  if (!curve) for (const b of bins) {
    const area = make(svg, 'rect', {class: 'hover', x: x(b.lo), width: x(b.hi) - x(b.lo), y: top,
      height: size + below,
      tabindex: 0, 'aria-label': `bin ${b.lo} to ${b.hi}: ${b.n} samples, ${hits} ${percent(b.acc)}`});
    for (const event of ['mouseenter', 'focus', 'click']) area.addEventListener(event, () => describe(b));
  }
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
function draw() {
  const names = Object.fromEntries(rows.map((r, i) => [r, i ? 'after: ' + r : 'before']));
  buttons('diagram-switches', {row: names, bins: {10: '10 bins', 15: '15 bins', 30: '30 bins', corp: 'no bins'}});
  buttons('dot-switches', {measure: {nll: 'NLL', ece: 'ECE'}});
  document.getElementById('chance').hidden = state.measure !== 'ece';
  diagram();
  dots();
}
addEventListener('resize', dots);
draw();
