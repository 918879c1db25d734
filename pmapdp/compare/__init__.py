"""Compare the strategies, or your own steps: `python -m pmapdp.compare`.

- `__main__.py` reads the command line, and prints the table.
- `strategies.py` trains with each strategy, and with the two of `wrong_strategies.py`.
  `programs.py` runs your own steps. Both do it in processes of their own, and measure
  with `measure.py`.
- `results.py` says what a measurement and a comparison hold.
- `sources.py` reads the code of each column, and `diff.py` sets it side by side.
- `words.py` makes sentences, for table and page.
- `page.py` puts all of it on one page: `strategies.html`, with the programs of
  `to_copy.toml` and the mistakes of `mistakes.toml`, or `programs.html` for your own.
  Both have the frame `page.html` and the look of `page.css`, and share `parts.html`,
  the lines of `code.html` and the pictures of `pictures.html`, whose curves come from
  `pictures.py`.
"""
