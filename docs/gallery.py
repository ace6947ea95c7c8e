"""Write the pages of `runs/gallery`: one page with all experiments, and a page for each paper.

`python docs/gallery.py FOLDER EXPERIMENT...` reads the executed notebooks of the folder; `make gallery` calls this.
"""
import ast
import json
import re
import shlex
import sys
from html.parser import HTMLParser
from itertools import groupby
from pathlib import Path
from urllib.parse import quote

from calibnb.core.atomic import atomic_write
from calibnb.core.text import html_text, markdown_table, markdown_text
from calibnb.notebooks.experiment import save_with_palette
from calibnb.notebooks.pages import open_png, png_outputs
from calibnb.studies.claims import MIXED, count_sentence, joint_verdict, paper_claims, read_verdicts
from calibnb.studies.findings import (
    CONTRADICTED, CONTRADICTED_BUT_SMALL, EQUIVALENT, HOLDS, HOLDS_BUT_SMALL, OPEN, WRONG
)
from calibnb.studies.papers import figure_index, full_text, panel_text, paper_numbers, paper_table, quick_text


def named_outputs(notebook)->dict:
    "Return the named outputs of an executed notebook: (kind, name) -> PNG in base64, or HTML of a table."
    kinds, found = {'image/png': 'figure', 'text/html': 'table'}, {}
    for output in (o for cell in notebook.cells for o in cell.get('outputs', [])):
        for mime, kind in kinds.items():
            name = output.get('metadata', {}).get(mime, {}).get('name')
            if name: found[kind, name] = output.data[mime]
    return found

class _Cells(HTMLParser):
    "The cells of an HTML table; `head` and `body` are lists of rows, and a row is a list of one dictionary per cell."
    def __init__(self, html):
        super().__init__()
        self.head, self.body, self._rows, self._open = [], [], None, False
        self.feed(html[html.index('<table'):html.index('</table>')])

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag in ('thead', 'tbody'): self._rows = self.head if tag == 'thead' else self.body
        if tag == 'tr': self._rows.append([])
        if tag == 'br' and self._open: self._rows[-1][-1]['text'] += '<br>'
        if tag in ('th', 'td'):
            spans = ''.join(f' {k}="{int(attrs[k])}"' for k in ('rowspan', 'colspan') if k in attrs)
            names = 'index_name' in attrs.get('class', '')
            self._rows[-1].append(dict(th=tag == 'th', index_name=names, text='', spans=spans))
            self._open = True

    def handle_endtag(self, tag):
        if tag in ('th', 'td'): self._open = False

    def handle_data(self, data):
        if self._open: self._rows[-1][-1]['text'] += html_text(data.replace('\xa0', ' ').strip())

_SHORT = 12 # longest index name in the corner of a table; a longer name is above the table

def _plain_table(html)->str:
    "Return a pandas table in HTML without styles; index names are in the last heading row, or above the table."
    cells = _Cells(html)
    *heads, names = cells.head  # pandas gives the index names a heading row of their own; merge it with the row above
    caption, width = '', sum(cell['index_name'] for cell in names)
    if heads and width and not any(cell['text'] for cell in names[width:]):
        columns, corner = heads[-1][width - 1]['text'], [cell['text'] for cell in names[:width]]
        heads[-1] = [dict(cell, text=text) for cell, text in zip(heads[-1], corner)] + heads[-1][width:]
        if columns and columns != 'metric': heads[-1][width - 1]['text'] = f'{corner[-1]}; columns: {columns}'
        if width == 1 and len(heads[-1][0]['text']) > _SHORT: caption, heads[-1][0]['text'] = heads[-1][0]['text'], ''
    else: heads.append(names)
    def row_of(row): return '<tr>' + ''.join(map(_cell, row)) + '</tr>'
    table = ['<table>', '<thead>', *map(row_of, heads), '</thead>', '<tbody>', *map(row_of, cells.body), '</tbody>',
             '</table>']
    return (f'{_sentence(caption)}\n\n' if caption else '') + '\n'.join(table)

def _cell(cell)->str:
    "Return a cell in HTML, names on the left and numbers on the right."
    tag = 'th' if cell['th'] else 'td'
    number = re.fullmatch(r'[-+]?[\d.,]+(e[-+]?\d+)?( ± [\d.]+)?( [●○])?|[–-]', cell['text'])
    align = 'left' if cell['th'] or not number else 'right'
    text = re.sub('(?<=±) | (?=[●○])', '&nbsp;', cell['text'])  # no line break before a deviation or mark
    return f'<{tag} align="{align}"{cell["spans"]}>{text}</{tag}>'

def _sentence(text)->str:
    "Return a phrase as a sentence: with a full stop and, except before symbols and identifiers, a capital letter."
    is_symbol = not text[:1].isascii() or re.match(r'[B-Zb-z]\b|\w+_', text)  # γ, g(p), noisy_digits
    return (text[:1] if is_symbol else text[:1].upper()) + text[1:].removesuffix('.') + '.'

def save_small_picture(
    png:str,         # base64, as in a notebook
    path,            # path of the file
    width:int=1000,  # in pixels
):
    "Save a picture of a notebook with 128 colours, at most `width` pixels wide."
    from PIL.Image import Resampling
    image = open_png(png)
    if image.width > width: image = image.resize((width, round(image.height*width/image.width)), Resampling.LANCZOS)
    with atomic_write(path) as tmp: save_with_palette(image, tmp, 128, optimize=True)


def _printed_numbers(paper, place)->list[str]:
    "Return the numbers that the paper prints in a table, as paragraphs."
    numbers = paper_numbers()
    numbers = numbers[(numbers.paper == paper) & (numbers.place == place)]
    if not len(numbers): return []  # the loss study prints no numbers
    table = paper_table(paper, ('data', 'model', 'metric'), printed=True, place=place).T.fillna('–')
    if sum(max(len(name), 4) for name in table.columns) < _WIDE:
        tables = [_in_markdown(table.set_axis([_row_name(key) for key in table.index]))]
    else:  # too wide: one table for each data set, with a row for each method
        tables = [part for data, of_data in table.groupby(level='data', sort=False) for part in
                  (f'{markdown_text(data)}:', _in_markdown(_without_data(of_data)))]
    return _collapsed_if_long(_numbers_heading(numbers), tables)

def _in_markdown(table): return markdown_table({table.index.name or '': table.index, **table}, left=table.columns)

def _without_data(table):
    "Return the numbers of one data set, with a row for each method; the columns omit the name of the data set."
    return table.T.set_axis([_row_name(key[1:]) for key in table.index], axis=1)

_LONG = 14 # rows; a longer table of a paper is collapsed
_WIDE = 65 # letters in the heading of a table

def _collapsed_if_long(heading, tables)->list[str]:
    "Return a heading and tables in Markdown, collapsed if the tables have many rows in total."
    n = sum(len(table.splitlines()) - 2 for table in tables if table.startswith('|'))
    if n <= _LONG: return [f'**{heading}:**', *tables]
    summary = f'<summary><b>{html_text(heading)}</b> ({n} rows)</summary>'
    return ['<details markdown="1">', summary, *tables, '</details>']

def _numbers_heading(numbers)->str:
    "Return a heading with the numbers of test samples and training runs, if they are the same for the whole table."
    def common(column): return numbers[column].iloc[0] if numbers[column].nunique(dropna=False) == 1 else float('nan')
    counts = {'test samples': common('n_test'), 'trainings': common('runs')}
    return ', '.join(["The paper's numbers", *(f'{n:,.0f} {unit}' for unit, n in counts.items() if n > 0)])

def _row_name(key):
    "Return the name of a row, 'CIFAR-10, ResNet-50, ECE %', without parts that are not stated."
    return key if isinstance(key, str) else ', '.join(part for part in key if part != '–')


def _slug(paper):
    return re.sub(r'[^a-z0-9]+', '_', paper.lower()).strip('_')

def _our_output(directory, row, outputs)->str:
    "Return our picture or table for a row, a link to our section, or a remark that nothing is drawn."
    name, notebook = row['name'], row['notebook']
    if not notebook: return f'*Not drawn: {markdown_text(row["note"] or "no notebook of ours shows it")}.*'
    found = outputs.get(notebook, {}).get((row['kind'], name))
    if row['kind'] == 'section' or found is None:
        return f'In [{notebook}]({notebook}.ipynb), {row["kind"]} “{markdown_text(name)}”.'
    if row['kind'] == 'table': return _plain_table(found)
    picture = Path('figures')/f'{notebook}-{name}.png'
    (directory/picture.parent).mkdir(exist_ok=True)
    save_small_picture(found, directory/picture)
    return f'[![{markdown_text(row["shows"])}]({picture.as_posix()})]({notebook}.ipynb)'

def _anchor(heading)->str:
    "Return the link to a heading of the page, as GitHub names it: '#fig-5-b-c'."
    return '#' + re.sub(r'[^\w -]', '', heading.lower()).replace(' ', '-')

_REPORT_TEXT = 'No quick run shows this table: `report` makes it from the trainings of the full run.'

def _paragraphs(directory, row, outputs, shown)->list[str]:
    "Return the paragraphs of a row; `shown` maps outputs and commands to places on the page, and is updated."
    title = f'**{markdown_text(_sentence(row["shows"]))}**'
    note = [markdown_text(_sentence(row['note']))] if row['note'] else []
    output = _our_output(directory, row, outputs)
    if not row['notebook']: return [title, output]
    if row['notebook'] == 'report': return [title, _REPORT_TEXT, *note]
    run = _quick_run(quick_text(row))
    key = (row['kind'], row['notebook'], row['name'])
    if row['kind'] == 'section': return [title, run, output, *note]
    place = shown.setdefault(key, row['place'])
    if place == row['place']: return [title, run, output, *note]
    return [title, f'This is the {row["kind"]} under [{place}]({_anchor(place)}).', *note]

def _quick_run(text)->str:
    "Return the paragraph about the quick run, from `quick_text`."
    if text == 'no training': return '*Nothing is trained.*'
    if text == "the paper's numbers alone": return "*The paper's numbers alone.*"
    return f'*Quick run:* {markdown_text(_sentence(text))}'

def _full_run(row, shown)->list[str]:
    "Return the paragraphs about the run of a row's command, with the command only once; `shown` is updated."
    if not row['command']: return []
    run = f'*Full run:* {markdown_text(_sentences(full_text(row)))}'
    if place := shown.get(row['command']): return [f'{run} The command is under [{place}]({_anchor(place)}).']
    shown[row['command']] = row['place']
    return [run, '```sh\n' + row['command'].replace(' && ', ' &&\n') + '\n```']

def _place(directory, rows, outputs, shown)->list[str]:
    "Return the section of one figure or table of a paper; `shown` as in `_paragraphs`."
    paper, place = rows[0]['paper'], rows[0]['place']
    captions = dict.fromkeys(_sentences(panel_text(row)) for row in rows if panel_text(row))
    printed = _printed_numbers(paper, place)
    parts = [f'## {place}', *(f'*In the paper:* {markdown_text(caption)}' for caption in captions), *printed]
    if printed: rows = [row for row in rows if not row['shows'].startswith("the paper's numbers")]  # printed above
    for _, group in groupby(rows, lambda row: row['command']):
        group = list(group)
        for row in group: parts += _paragraphs(directory, row, outputs, shown)
        parts += _full_run(group[-1], shown)
    return parts

def _sentences(text)->str: return ' '.join(map(_sentence, re.split(r'(?<![. ])\. ', text)))  # not at '..'


_MARKERS = {HOLDS: '●', HOLDS_BUT_SMALL: '•', CONTRADICTED: '○', CONTRADICTED_BUT_SMALL: '◦', EQUIVALENT: '=',
            OPEN: '?', MIXED: '◐', WRONG: '×'}
_LEGEND = ', '.join(f'{marker} {verdict}' for verdict, marker in _MARKERS.items())

def _marker(found)->str:
    "Return a marker with a link for each study; `found` has the verdicts on one claim and data set."
    if not found: return ''
    by_study = {}
    for v in found: by_study.setdefault(v['notebook'], []).append(v['verdict'])
    return ' '.join(f'[{_MARKERS[joint_verdict(verdicts)]}]({study}.ipynb)' for study, verdicts in by_study.items())

def _claim_table(paper, verdicts)->list[str]:
    "Return a legend and a table of the claims of a paper: a row for each claim, a column for each data set."
    rows = paper_claims(paper)
    sets = dict.fromkeys(v['data'] for row in rows for v in verdicts.get(row['id'], []))
    heads = ['id', 'claim', 'own numbers', *(markdown_text(name.replace('_', ' ')) or 'no data' for name in sets)]
    def cells(row):
        found = verdicts.get(row['id'], [])
        markers = [_marker([v for v in found if v['data'] == name]) for name in sets]
        return [markdown_text(row['id']), _claim_cell(row, found), markdown_text(row['supported']), *markers]
    lines = [heads, ['---', '---', *[':-:']*(len(heads) - 2)], *map(cells, rows)]
    table = '\n'.join('| ' + ' | '.join(line) + ' |' for line in lines)
    return ['## Claims', _ABOUT_CLAIMS.format(legend=_LEGEND), table]

_ABOUT_CLAIMS = ('{legend}. A marker links to the study that tests the claim on these data; identities need no data. '
                 'The column “own numbers” shows whether the numbers that the paper prints support the claim. The '
                 'rules for verdicts are in [03_verdicts](../../nbs/72_studies/03_verdicts.ipynb).')

def _escape_prose(text)->str:
    "Escape Markdown outside of code spans."
    parts = re.split(r'(`[^`]+`)', text)  # code spans have odd indices
    return ''.join(part if i % 2 else _escape_keeping_spaces(part) for i, part in enumerate(parts))

def _escape_keeping_spaces(text):
    "Escape Markdown; keep one space at the start and at the end if the text has spaces there."
    return text and ' '*text[:1].isspace() + markdown_text(text) + ' '*(text[-1:].isspace() and bool(text.strip()))

def _claim_cell(row, found)->str:
    "Return the place and text of a claim, collapsed details and, if no study tests the claim, the reason."
    place = markdown_text(row['place'] + (', identity' if row['kind'] == 'identity' else ''))
    strength = '' if row['strength'] == 'stated' else f' *({markdown_text(row["strength"])})*'
    missing = '' if found else row['cannot'] or row['open']
    not_tested = f'<br>*Not tested here:* {_escape_prose(missing)}.' if missing else ''
    facts = {'Scope': row['scope'], 'Protocol': row['protocol'], 'Numbers': row['numbers'],
             'Own numbers': row['own_numbers'] and f'{row["supported"]}: {row["own_numbers"]}'}
    details = '<br>'.join(f'{k}: {markdown_text(v)}' for k, v in facts.items() if v not in ('', '-'))
    claim = f'**{place}.** {markdown_text(row["claim"])}{strength}{not_tested}'
    return f'{claim}<details><summary>details</summary>{details}</details>'


def write_paper_pages(
    directory,    # holds executed notebooks from `copy_notebook`
)->list[Path]:    # one page per paper
    "Write a page for each paper: `<paper>.md`, with pictures in `figures/`."
    import nbformat
    directory, pages = Path(directory), {}
    outputs = {p.stem: named_outputs(nbformat.read(p, as_version=4)) for p in directory.glob('*.ipynb')}
    rows, verdicts = figure_index(), read_verdicts(directory)
    for paper in dict.fromkeys(row['paper'] for row in rows):
        places, shown = {}, {}
        for row in rows:
            if row['paper'] == paper: places.setdefault(row['place'], []).append(row)
        links = ' · '.join(f'[{markdown_text(name)}]({_anchor(name)})' for name in ['Claims', *places])
        title, name = paper[:1].upper() + paper[1:], paper if paper[:1].isupper() else f'the {paper} paper'
        parts = [f'# {title}', _ABOUT_PAPER.format(paper=name), links, *_claim_table(paper, verdicts)]
        for of_place in places.values(): parts += _place(directory, of_place, outputs, shown)
        pages[directory/f'{_slug(paper)}.md'] = '\n\n'.join(parts) + '\n'
    for path, text in pages.items():
        with atomic_write(path) as tmp: tmp.write_text(text, encoding='utf-8')
    return list(pages)

_ABOUT_PAPER = ('The claims, figures and tables of {paper}, in the order of the paper. Our notebooks test the claims '
                'and draw the figures. Every figure here shows a *quick run*: small data and a small network, trained '
                'in minutes. Compare the shapes of the curves with the paper, not the numbers. The *full run* '
                'has the data and networks of the paper; the command below a figure starts the full run.\n\n'
                '*Digits* are the images of scikit-learn, averaged to 4×4 pixels. *Ambiguous digits* are 8×8 '
                'images of two digits that are blended with a random weight; the label is one of the two digits, with '
                'a probability that depends on the weight and is therefore known, and the test set has 10,000 '
                'samples. *MLP 256-256* is a network with two '
                'hidden layers of 256 units.')


def _summary(nb)->dict:
    "Return title, sentences on what was found, pictures {figure: base64} (the covers, or else the first) and counts."
    text = next((c.source for c in nb.cells if c.cell_type == 'markdown'), '')
    title = next((line[2:].strip() for line in text.split('\n') if line.startswith('# ')), '')
    outputs = [(output.metadata.get('image/png', {}), output.data['image/png']) for output in png_outputs(nb)]
    covers = [(about, picture) for about, picture in outputs if about.get('cover')] or outputs[:1]
    pictures = {about.get('name', ''): picture for about, picture in covers}
    return dict(title=title, found=nb.metadata.get('found', []), pictures=pictures,
                findings=nb.metadata.get('findings', {}), parameters=_changed_parameters(nb))

def _changed_parameters(nb)->dict:
    "Return the parameters of an executed notebook that differ from their defaults."
    def assigned(tag):
        cells = [cell for cell in nb.cells if tag in cell.metadata.get('tags', [])]
        lines = [node for cell in cells for node in ast.parse(cell.source).body]
        return {ast.unparse(getattr(node, 'target', None) or node.targets[0]): ast.literal_eval(node.value)
                for node in lines}
    defaults = assigned('parameters')
    return {name: value for name, value in assigned('injected-parameters').items() if value != defaults.get(name)}


_ABOUT = ('Every experiment in quick mode, as executed by `make gallery`, with its command. Without the parameters '
          'after `-p`, it takes a minute or two on two cores. A test over seeds and test samples decides each claim of '
          'a paper. Our own observations and identities, which algebra or arithmetic decides, are counted separately. '
          'The last notebook, in `cifar10/`, reads tables in its folder, which contain the results of trainings that '
          'took hours.')


def write_gallery(
    directory,   # holds executed notebooks from `copy_notebook`, or folders of such notebooks
    order=(),    # names of the notebooks that come first
)->Path:         # the README.md
    "Write the page of a gallery, with a small picture for each notebook; further covers become `NAME-FIGURE.png`."
    import nbformat
    directory = Path(directory)
    paths = {p.relative_to(directory).with_suffix('').as_posix(): p  # notebooks in subfolders come last
             for pattern in ('*.ipynb', '*/*.ipynb') for p in sorted(directory.glob(pattern))}
    paper_pages = [page for page in sorted(directory.glob('*.md')) if page.stem != 'README']
    links = [f'[{markdown_text(_title(page))}]({quote(page.name)})' for page in paper_pages]
    verdicts = read_verdicts(directory)
    parts = ['# Gallery', f'{_ABOUT} {count_sentence(verdicts)}' if verdicts else _ABOUT]
    if links: parts.append(f'Figure by figure and table by table: {", ".join(links)}.')
    for name in [*(n for n in order if n in paths), *(n for n in paths if n not in order)]:
        summary = _summary(nbformat.read(paths[name], as_version=4))
        for i, (figure, picture) in enumerate(summary['pictures'].items()):
            save_small_picture(picture, directory/(f'{name}-{figure}.png' if i else f'{name}.png'))
        parts += _section(name, summary)
    with atomic_write(directory/'README.md') as tmp: tmp.write_text('\n\n'.join(parts) + '\n', encoding='utf-8')
    return directory/'README.md'


def _title(page)->str:
    "Return the title of a Markdown page, its first line."
    return page.read_text(encoding='utf-8').partition('\n')[0].removeprefix('# ')

def _section(name, summary)->list[str]:
    "Return the paragraphs of one notebook; the counts begin with the claims of papers."
    notebook, picture, text = quote(f'{name}.ipynb'), quote(f'{name}.png'), markdown_text(name)
    paragraphs = [f'## [{markdown_text(summary["title"]) or text}]({notebook})']
    findings = summary['findings']
    if summary['found']: paragraphs.append(' '.join(summary['found']))
    if summary['pictures']: paragraphs.append(f'[![{text}]({picture})]({notebook})')
    counts = [_count_text(title, kind, findings) for kind, title in _KIND_TITLES.items()]
    if any(counts): paragraphs.append(' '.join(count for count in counts if count))
    return [*paragraphs, f'`{_command(name, summary["parameters"])}`']

def _command(name, parameters)->str:
    "Return the command that executes a notebook with these parameters."
    options = [f'-p {key} {shlex.quote(value if isinstance(value, str) else json.dumps(value))}'
               for key, value in parameters.items()]
    return ' '.join(['calibnb run', name.rpartition('/')[2], *options])

_KIND_TITLES = {'paper': 'Claims of papers', 'ours': 'Observations', 'identity': 'Identities'}

def _count_text(title, kind, findings):
    "Return 'Claims of papers: 2 holds, 1 open.', or '' if there are none; claims that hold come first."
    counts = {key.partition(': ')[2]: n for key, n in findings.items() if key.startswith(f'{kind}: ')}
    verdicts = sorted(counts, key=lambda verdict: (verdict != 'holds', verdict))
    return f'{title}: ' + ', '.join(f'{counts[verdict]} {verdict}' for verdict in verdicts) + '.' if counts else ''


if __name__ == '__main__':
    write_paper_pages(sys.argv[1])
    write_gallery(sys.argv[1], sys.argv[2:])
