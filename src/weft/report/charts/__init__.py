"""Charts as SVG, and plots by matplotlib."""
