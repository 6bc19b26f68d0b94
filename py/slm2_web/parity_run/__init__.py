"""The parity suite in many browsers at once, from outside: `slm2-web parity`.

cells      which browser with which executor, and which of them can't be
drive      one cell: the page parity.html, told by its address what to run, asked how far it is
run        all cells, one after the other or side by side, and the certificate of them
page       the certificate as a page
compare    two certificates
"""
