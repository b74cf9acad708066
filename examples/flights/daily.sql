SELECT day, origin, carrier,
       count(*) AS flights,
       count_if(cancelled) AS cancelled,
       count_if(late) AS late,
       avg(dep_delay) AS mean_delay,
       max(precip) AS max_precip
FROM flights
GROUP BY day, origin, carrier
