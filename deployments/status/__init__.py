"""The page `/`: what runs, how busy it is, where grammars are found."""
