"""Small language models in the browser: the same tokens, bit for bit, everywhere.

The package runs unchanged in CPython and in Pyodide. Each folder is one stage, data flows down
this list, and imports look back up it only:

    errors -> shipped -> strictjson -> container -> manifest -> packed
    tokenizer2    bytes <-> ids, by offline-compiled tables
    template2     messages -> runs (control ids and text)
    prompt2       what goes into the context, within which budget
    forward2      ids -> logits, with the same bits on every executor
    sampling2     logits -> id, replayable
    constrain     a JSON schema or a pattern -> the ids that may follow
    request       what is asked, from anywhere, and the prompt for it
    stopstrings   ends a text at a string, over-holding nothing
    reply         the ids of a reply -> its answer, its thought and its calls of tools
    guide         which ids may come next in a reply
    session       the loop that joins the stages
    transcript    what a run was, in one JSON
    protocol      the messages between page and worker
    parity        the same records from every implementation, and what each came to
    bridge        the browser's side (the only folder that imports `js` or `pyodide`)
    browsers      drives real browsers, for the tests, the benches and the command line
    cli, bench, parity_run, compile  offline: the command line, the benches, the parity suite in every
                  browser, and the compilers that make a packed model
"""

__version__ = "0.1.0"
