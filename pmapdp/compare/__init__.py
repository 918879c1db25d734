"""Compare the strategies, or your own steps: `python -m pmapdp.compare`.

- `__main__.py` reads the command line, and prints the table.
- `strategies.py` trains with each strategy, and with the two of `wrong_strategies.py`.
  `programs.py` runs your own steps. Both do it in processes of their own, and measure
  with `measure.py`.
- `results.py` says what a measurement and a comparison hold.
- `sources.py` reads the code of each column, and `diff.py` sets it side by side.
- `words.py` makes sentences, for table and page.
- `page.py` puts all of it into `page.html`, in the look of `page.css`, with the
  mistakes of `mistakes.toml`, the programs of `to_copy.toml`, the cells of
  `cells.html`, the lines of `code.html`, and the pictures of `pictures.html`, whose
  curves come from `pictures.py`.
"""
