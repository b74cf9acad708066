WITH days AS (
  SELECT day, origin, sum(mean_delay * (flights - cancelled)) / sum(flights - cancelled) AS mean_delay
  FROM compacted
  GROUP BY day, origin
), compared AS (
  SELECT *,
         avg(mean_delay) OVER before AS usual,
         stddev(mean_delay) OVER before AS spread,
         count(*) OVER before AS days
  FROM days
  WINDOW before AS (PARTITION BY origin ORDER BY day ROWS BETWEEN 14 PRECEDING AND 1 PRECEDING)
)
SELECT day, origin, round(mean_delay, 1) AS mean_delay, round(usual, 1) AS usual,
       round((mean_delay - usual) / spread, 1) AS z_score
FROM compared
WHERE days >= 7 AND spread > 0 AND (mean_delay - usual) / spread > 3
ORDER BY day, origin
