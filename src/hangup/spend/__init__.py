"""What calls used, whose fate it shared, what it cost. Pure; standard library only."""
