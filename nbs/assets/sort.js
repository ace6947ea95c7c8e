'use strict';
for (const table of document.querySelectorAll('table.sortable')) {
  const body = table.tBodies[0], first = [...body.rows];
  table.tHead.querySelectorAll('button').forEach((button, column) => button.addEventListener('click', () => {
    const down = button.dataset.order === 'up';
    button.dataset.order = down ? 'down' : 'up';
    const value = row => row.cells[column].dataset.value;
    const rank = v => v === '' || v === undefined ? 2 : isNaN(v) ? 1 : 0;  // numbers, then words, then empty cells
    const compare = (a, b) => {
      const x = value(a), y = value(b);
      return rank(x) - rank(y) || (rank(x) ? String(x).localeCompare(String(y)) : x - y);
    };
    const sorted = [...first].sort(compare);
    body.replaceChildren(...(down ? sorted.reverse() : sorted));
  }));
}
