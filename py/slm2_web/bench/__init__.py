"""Benches: figures with command, machine and versions, as JSON and as a page with plots. Not shipped.

    corpus      the texts that a tokenizer reads, with where each comes from
    machine     what a figure was measured on
    report      figures -> results.json and index.html
    peers       other programs' files, pinned by hash in peers.toml, fetched when they are wanted
    browser     jobs in Chromium, each in a worker of its own
    tokenizer   the tokenizer's bench; tokenizer_job is one job of it in a CPython of its own
    sampling    the sampler's bench; sampling_job is what runs in CPython and in Pyodide
    run         the benches by name: what `slm2-web bench` runs

docs/bench.md says how to run them and what the figures mean.
"""
