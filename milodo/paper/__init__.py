"""The paper's eighteen figures and tables: what it claims, its step sizes, panels, pictures, verdicts and the results page."""
