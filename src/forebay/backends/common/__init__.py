"""Parts that several backends share; `forebay.vendor` lists those for other packages."""
