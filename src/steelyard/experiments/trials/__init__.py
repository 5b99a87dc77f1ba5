"""Many short trainings on small problems: does a method gain over equal weights, and where?"""
