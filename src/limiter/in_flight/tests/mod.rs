mod orders;
