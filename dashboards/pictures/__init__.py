"""How the pictures of the dashboards in the README are drawn."""
