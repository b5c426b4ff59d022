"""What all pictures are drawn with: colours for the colour-blind, each with a shape of its own."""

INK, FAINT = "#22303c", "#8a97a3"
# Okabe and Ito's, without yellow, which is too pale for lines. Each goes with a marker of its own.
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = dict(zip((*COLOURS, INK), "osDPhX*", strict=True))
ACCENT = COLOURS[0]
