"""A strict stand-in for Apple's Metal, with PyObjC's spelling; README.md describes it, `control` steers it."""
