"""Features, as they are fed, of which FP16 rounds away what is read of them: by a scaler, by trees, or by a scaler in a first layer.

fed_features tells what is fed, and which nodes round it; of the others each is a form of the rule lost_difference.
"""
