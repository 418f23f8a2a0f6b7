"""Execute a notebook and draw its last cell: `python docs/images/draw_notebook.py notebook.png [dark]`.

Requires nbclient, nbconvert and Chromium.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

CELLS = [
    "%load_ext forebay",
    """import numpy as np, time

def load(rows):
    time.sleep(0.004)
    return np.random.default_rng(0).random((rows, 512))

def normalise(values):
    centred = values - values.mean(axis=0)
    return centred / centred.std(axis=0)""",
    """%%memory
batches = []
for step in range(6):
    batch = normalise(load(4096))
    batches.append(batch.astype(np.float32))
table = np.concatenate(batches)
del batches""",
]
STYLE = "<style>body { padding: 0 !important } .jp-Notebook { padding: 8px !important }</style>"


def main(path: str, theme: str = "light") -> None:
    import nbformat
    from nbclient import NotebookClient
    from nbconvert import HTMLExporter

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    NotebookClient(notebook, timeout=60).execute()
    del notebook.cells[0]
    page, _ = HTMLExporter(theme=theme).from_notebook_node(notebook)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "notebook.html")
        file.write_text(page.replace("</head>", f"{STYLE}</head>"), "utf-8")
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=900,852"]
        command = ["chromium", *options, f"--screenshot={Path(path).absolute()}", file.as_uri()]
        subprocess.run(command, check=True, capture_output=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
