"""Start and tuned model of a run, asked by programs (`burnish serve`) and by a person (`burnish chat`)."""
