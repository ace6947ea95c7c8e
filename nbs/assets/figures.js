'use strict';
const data = JSON.parse(document.getElementById('data').textContent);
const [confidence, hits, missed] = data.words;
const BINNINGS = {10: '10 bins', 15: '15 bins', 30: '30 bins', corp: 'no bins'};
const percent = (v, digits = 1) => (100*v).toFixed(digits) + '\u00a0%';
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
function legend(entries) {
  const list = Object.assign(element('p', ''), {className: 'legend'});
  for (const [name, text] of entries) {
    const item = element('span', text);
    item.prepend(Object.assign(element('i', ''), {className: name}));
    list.append(item, ' ');
  }
  return list;
}
function facts(entries) {
  const list = document.createElement('dl');
  for (const [name, text] of Object.entries(entries)) list.append(element('dt', name), element('dd', text));
  return list;
}
function frame(id, label, size = 320, below = 70) {  // the axes of a reliability diagram; below: room for numbers
  const left = below ? 46 : 28, top = 12, base = top + size + below, ticks = below ? [0, .2, .4, .6, .8, 1] : [0, .5, 1];
  const svg = canvas(id, left + size + 10, base + (below ? 44 : 20), label);
  const x = v => left + size*v, y = v => top + size*(1 - v);
  for (const v of ticks) {
    make(svg, 'line', {class: 'grid', x1: left, x2: left + size, y1: y(v), y2: y(v)});
    make(svg, 'text', {class: 'soft', x: left - 6, y: y(v) + 4, 'text-anchor': 'end'}, v.toFixed(1));
    make(svg, 'text', {class: 'soft', x: x(v), y: base + 16, 'text-anchor': 'middle'}, v.toFixed(1));
  }
  if (below) {
    make(svg, 'text', {x: left + size/2, y: base + 36, 'text-anchor': 'middle'}, confidence);
    make(svg, 'text', {transform: `translate(12 ${top + size/2}) rotate(-90)`, 'text-anchor': 'middle'}, hits);
    make(svg, 'text', {class: 'soft', transform: `translate(12 ${base - below/2 + 6}) rotate(-90)`,
      'text-anchor': 'middle'}, 'samples');
  }
  const diagonal = () => make(svg, 'line', {class: 'diagonal', x1: x(0), y1: y(0), x2: x(1), y2: y(1)});  // on top
  return {svg, x, y, base, size, top, below, diagonal};
}
function share(plot, bin, largest, at, width, name) {  // the number of samples of a bin, as a bar below the diagram
  const height = (plot.below - 12)*bin.n/largest;
  make(plot.svg, 'rect', {class: name, x: at, width, y: plot.base - height, height});
}
function band(plot, curve, name = 'band') {  // where isotonic regression of a calibrated model lies
  const places = ends => ends.map((v, i) => `${plot.x(curve.at[i])},${plot.y(v)}`);
  make(plot.svg, 'polygon', {class: name, points: [...places(curve.low), ...places(curve.high).reverse()].join(' ')});
}
function line(plot, at, values, name) {
  make(plot.svg, 'polyline', {class: name, points: at.map((v, i) => `${plot.x(v)},${plot.y(values[i])}`).join(' ')});
}
function pointed(plot, bin, label, show) {  // the part of a diagram that shows a bin when it is pointed at or tapped
  const area = make(plot.svg, 'rect', {class: 'hover', x: plot.x(bin.lo), width: plot.x(bin.hi) - plot.x(bin.lo),
    y: plot.top, height: plot.size + plot.below, tabindex: 0, 'aria-label': label});
  for (const event of ['mouseenter', 'focus', 'click']) area.addEventListener(event, show);
}
