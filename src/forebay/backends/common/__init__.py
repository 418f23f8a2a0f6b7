"""Building blocks shared by several backends; `forebay.vendor` exports those for other packages."""
