"""The parity suite: the same records from every implementation, and what each of them came to.

    stage.make(subject, index) -> input -> stage.run(subject, input) -> output

A record is `{"id", "input", "output"}`. Its input is plain JSON that is made from its number and the model's
vocabulary alone, by integers; its output is what the code at hand makes of that. A record's mark is eight
hexadecimal digits of its canonical JSON's sha256; a stage's digest is the sha256 of all its lines. Two runs
are equal where the digests are; where they differ, the marks say which record differs first.

A size takes the first records of a stage: what is smaller is a beginning of what is larger.
"""
